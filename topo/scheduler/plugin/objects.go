package plugin

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
)

// lookEvery is how often an API group is looked for that the cluster does not
// have: an informer of it would only fail, again and again.
const lookEvery = 30 * time.Second

// follow watches the PodGroup objects of one API group, as soon as the cluster
// has it, until the context ends.
func (p *Plugin) follow(ctx context.Context, client dynamic.Interface, group string) {
	resource := schema.GroupVersionResource{Group: group, Version: gang.APIVersion, Resource: gang.Resource}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	looked := false
	for {
		_, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			break
		}
		if apierrors.IsNotFound(err) && !looked {
			p.lacks(ctx, group)
		}
		looked = p.lookedFor(looked)
		if !apierrors.IsNotFound(err) && ctx.Err() == nil {
			p.log.WarnContext(ctx, "cannot list podgroups", "err", err, "group", group)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(resource).Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.object(group, object, false) },
		UpdateFunc: func(_, object any) { p.object(group, object, false) },
		DeleteFunc: func(object any) { p.object(group, object, true) },
	})
	if err != nil {
		p.log.ErrorContext(ctx, "cannot watch podgroups", "err", err, "group", group)
		return
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	p.lookedFor(looked)
	p.keepPodGroups(ctx, group, client.Resource(resource), informer.GetStore())
	<-ctx.Done()
	factory.Shutdown()
}

// object takes over what a PodGroup object says now.
func (p *Plugin) object(group string, object any, gone bool) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return
	}
	spec, fault := gang.ReadObject(u.Object, p.book.domains)
	if spec.Key.Name == "" {
		return
	}
	// What we made only repeats the pods.
	gone = gone || podgroup.Ours(u)
	b := p.book
	b.mu.Lock()
	e := b.say(group, &spec, fault, gone)
	var waiting []types.UID
	var why string
	if e != nil {
		waiting, why = b.shrunk(e)
	}
	b.mu.Unlock()
	p.reject(waiting, why)
	p.wake(spec.Key)
}

// said is what a PodGroup object of one API group says.
type said struct {
	spec  gang.Spec
	fault error
}

// say takes over what an object says; a gang may have one of either group. It
// is nil if that changes nothing.
func (b *book) say(group string, spec *gang.Spec, fault error, gone bool) *entry {
	if gone && b.gangs[spec.Key] == nil {
		return nil
	}
	e := b.entry(spec.Key)
	if gone {
		delete(e.said, group)
	} else {
		if e.said == nil {
			e.said = map[string]said{}
		}
		e.said[group] = said{*spec, fault}
	}
	e.object, e.objectFault, e.stale = nil, nil, true
	for _, name := range []string{gang.APIGroup, gang.APIGroupXK8s} {
		s, ok := e.said[name]
		if !ok {
			continue
		}
		if e.objectFault == nil {
			e.objectFault = s.fault
		}
		if e.object != nil && e.object.MinMember != s.spec.MinMember && e.objectFault == nil {
			e.objectFault = fmt.Errorf("podgroups of %s and of %s say %d and %d members",
				gang.APIGroup, gang.APIGroupXK8s, e.object.MinMember, s.spec.MinMember)
		}
		if e.object == nil {
			e.object = &s.spec
		}
	}
	if e.object == nil && len(e.members) == 0 {
		delete(b.gangs, e.key)
		return nil
	}
	return e
}
