package controller

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/suspect"
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
		func(node *corev1.Node) {
			c.Suspects.Node(node.Name, suspect.FaultsOf(node))
			c.Suspects.Tested(node.Name, node.Labels[wellknown.FabricTested] != "")
			c.Cache.NodeChanged(node.Name, node)
		},
		func(node *corev1.Node) {
			c.Suspects.Remove(node.Name)
			c.Cache.GPUs.ForgetNode(node.Name)
			c.Cache.NodeChanged(node.Name, nil)
		},
	)); err != nil {
		return err
	}
	c.pods, err = core.Pods().Informer().AddEventHandler(handler(
		func(pod *corev1.Pod) {
			c.see(pod)
			c.Cache.UpdatePod(pod)
		},
		func(pod *corev1.Pod) {
			c.Suspects.Lose(pod.UID, time.Now())
			c.Cache.GPUs.Release(pod.UID)
			c.Cache.DeletePod(pod)
		},
	))
	return err
}

// resource returns the resource of PodGroups in an API group.
func resource(group string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: wellknown.PodGroupVersion, Resource: wellknown.PodGroups}
}

// followPodGroups watches the PodGroup objects of both API groups, from when the
// cluster has them, and writes them.
func (c *Controller) followPodGroups(ctx context.Context) {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.client, 0)
	defer factory.Shutdown()
	var known []cache.InformerSynced
	for _, group := range gangcache.APIGroups() {
		informer := factory.ForResource(resource(group)).Informer()
		var absent atomic.Bool
		_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
			if absent.Store(true); !apierrors.IsNotFound(err) {
				cache.DefaultWatchErrorHandler(ctx, r, err)
			}
		})
		registration, _ := informer.AddEventHandler(handler(
			func(o *unstructured.Unstructured) { c.podGroup(group, o, managed(o)) },
			func(o *unstructured.Unstructured) { c.podGroup(group, o, true) },
		)) // Both fail in an informer that runs or has ended alone.
		known = append(known, func() bool { return absent.Load() || registration.HasSynced() })
	}
	factory.Start(ctx.Done())
	objects := factory.ForResource(resource(wellknown.PodGroupAPIXK8s)).Informer()
	var until time.Time
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		// Before both groups were looked for, an object that was not seen is not missing.
		if !c.PodGroups || !c.Leads.Load() || time.Now().Before(until) || !objects.HasSynced() || !known[0]() || !known[1]() {
			return
		}
		if err := c.reconcile(ctx, objects.GetStore().List()); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "cannot write podgroups", "err", err)
			until = time.Now().Add(retryAfter)
		}
	}, publishEvery)
}

// podGroup passes a PodGroup object to the cache. One that heddle created only repeats
// the pods, and counts as gone.
func (c *Controller) podGroup(group string, o *unstructured.Unstructured, gone bool) {
	spec, err := gang.ReadObject(o.Object, c.Cache.Domains)
	if spec.Key.Name == "" {
		return
	}
	if gone {
		c.Cache.SetPodGroup(group, spec.Key, nil, nil)
	} else {
		c.Cache.SetPodGroup(group, spec.Key, &spec, err)
	}
}
