package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
)

// handler calls two functions with typed objects.
func handler[T any](update, remove func(T)) cache.ResourceEventHandlerFuncs {
	typed := func(call func(T), object any) {
		if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = last.Obj
		}
		if o, ok := object.(T); ok {
			call(o)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { typed(update, object) },
		UpdateFunc: func(_, object any) { typed(update, object) },
		DeleteFunc: func(object any) { typed(remove, object) },
	}
}

// watch registers handlers of pods and nodes.
func (c *Controller) watch() (err error) {
	core := c.Handle.SharedInformerFactory().Core().V1()
	if _, err = core.Nodes().Informer().AddEventHandler(handler(
		func(node *corev1.Node) { c.Cache.NodeChanged(node.Name) },
		func(node *corev1.Node) { c.GPUs.ForgetNode(node.Name) },
	)); err != nil {
		return err
	}
	c.pods, err = core.Pods().Informer().AddEventHandler(handler(c.Cache.UpdatePod, func(pod *corev1.Pod) {
		c.GPUs.Release(pod.UID)
		c.Cache.DeletePod(pod)
	}))
	return err
}

// searchEvery is how often an API group is looked for that the cluster does not
// have: an informer of it would fail again and again.
const searchEvery = 30 * time.Second

// followPodGroups watches the PodGroup objects of one API group, from when the
// cluster has it, and keeps those that heddle makes.
func (c *Controller) followPodGroups(ctx context.Context, group string) {
	resource := schema.GroupVersionResource{Group: group, Version: gang.APIVersion, Resource: gang.Resource}
	managed := c.PodGroups && group == gang.APIGroupXK8s
	known := sync.OnceFunc(func() { c.searched.Add(1) })
	if !c.search(ctx, resource, managed, known) {
		return
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.client, 0)
	informer := factory.ForResource(resource).Informer()
	_, err := informer.AddEventHandler(handler(
		func(o *unstructured.Unstructured) { c.podGroup(group, o, podgroup.Managed(o)) },
		func(o *unstructured.Unstructured) { c.podGroup(group, o, true) },
	))
	if err != nil {
		c.Log.ErrorContext(ctx, "cannot watch podgroups", "err", err, "group", group)
		return
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	factory.WaitForCacheSync(ctx.Done())
	known()
	reconciler := podgroup.Reconciler{Client: c.client.Resource(resource), Log: c.Log}
	ticker := time.NewTicker(podgroup.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if gangs, ok := c.podGroups(); ok && managed {
				reconciler.Reconcile(ctx, now, gangs, informer.GetStore().List())
			}
		}
	}
}

// search waits until the cluster has a resource; false if the context ends first. It
// calls absent if the cluster does not have it yet.
func (c *Controller) search(
	ctx context.Context, resource schema.GroupVersionResource, managed bool, absent func(),
) bool {
	ticker := time.NewTicker(searchEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		_, err := c.client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case !apierrors.IsNotFound(err):
			c.Log.WarnContext(ctx, "cannot list podgroups", "err", err, "group", resource.Group)
		case first && managed:
			c.Log.InfoContext(ctx, "cluster has no podgroups, creating none", "group", resource.Group)
		}
		absent()
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// podGroup takes over a PodGroup object. One that heddle manages only repeats the
// pods, and counts as gone.
func (c *Controller) podGroup(group string, o *unstructured.Unstructured, gone bool) {
	spec, err := gang.ReadObject(o.Object, c.Cache.Domains)
	switch {
	case spec.Key.Name == "":
	case gone:
		c.Cache.DeletePodGroup(group, spec.Key)
	default:
		c.Cache.SetPodGroup(group, &spec, err)
	}
}

// podGroups are the PodGroup objects that gangs are to have; false in a replica that
// waits, and before all pods and objects are known: what was not seen yet is not
// missing.
func (c *Controller) podGroups() (map[types.NamespacedName]*podgroup.Gang, bool) {
	if int(c.searched.Load()) < len(gangcache.APIGroups()) || !c.pods.HasSynced() || !c.leader.leading() {
		return nil, false
	}
	all := map[types.NamespacedName]*podgroup.Gang{}
	for _, s := range c.Cache.Snapshots() {
		g := &podgroup.Gang{
			Key: s.Key, Foreign: !s.Own, MinMember: s.MinMember, Timeout: s.Timeout, Owner: owner(s.Pods),
			Create: s.Live && !s.Invalid && s.MinMember > 0,
			Status: podgroup.StatusOf(gang.StateOf(s.Pods, s.MinMember, c.nodeLost)),
		}
		for _, pod := range s.Pods {
			g.ByLabels = g.ByLabels || gang.IsLabeled(pod) && !s.HasObject
		}
		all[s.Key] = g
	}
	return all, true
}

// owner is the controller that all pods have; nil if they have none, or several.
func owner(pods []*corev1.Pod) (owner *metav1.OwnerReference) {
	for _, pod := range pods {
		o := metav1.GetControllerOfNoCopy(pod)
		if o == nil || owner != nil && o.UID != owner.UID {
			return nil
		}
		owner = o
	}
	return &metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
}
