package plugin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang"
)

// PreEnqueue keeps a member out of the queue until its gang has as many as it
// needs. It runs under the queue's lock.
func (p *Plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *framework.Status {
	if p.isNative(pod) || !gang.Mentions(pod) {
		return nil
	}
	known, changed := p.meet(pod)
	if !known {
		return nil // Not in a gang, or a fault for PreFilter to tell.
	}
	// The queue may know a pod that has just gone, and nobody would tell again.
	if changed && !p.exists(pod) {
		p.gone(pod)
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "the pod is gone")
	}
	b := p.book
	b.mu.Lock()
	e := b.of[pod.UID]
	ok, why := e != nil, "the pod is gone"
	if ok {
		ok, why = b.complete(e)
		e.completed(ok, b.now())
	}
	b.mu.Unlock()
	if !ok {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, why)
	}
	if changed {
		p.wake(e.key)
	}
	return nil
}

// meet takes over a pod that was not known yet. One that was may be newer than
// the queue's.
func (p *Plugin) meet(pod *corev1.Pod) (known, changed bool) {
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of[pod.UID] != nil {
		return true, false
	}
	e, changed := b.put(pod)
	return e != nil, changed
}

func (p *Plugin) exists(pod *corev1.Pod) bool {
	now, err := p.handle.SharedInformerFactory().Core().V1().Pods().Lister().Pods(pod.Namespace).Get(pod.Name)
	return err == nil && now.UID == pod.UID
}

// watch follows the pods, and what nodes are.
func (p *Plugin) watch() error {
	core := p.handle.SharedInformerFactory().Core().V1()
	_, err := core.Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, object any) {
			if node, ok := object.(*corev1.Node); ok {
				p.another(node.Name)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				p.tables.forget(node.Name)
				p.cards.Forget(node.Name)
				p.whole.Forget(node.Name)
			}
		},
	})
	if err != nil {
		return err
	}
	pods, err := core.Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				p.come(pod)
			}
		},
		UpdateFunc: func(_, object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				p.come(pod)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				p.gone(pod)
			}
		},
	})
	if err != nil {
		return err
	}
	p.seen(pods)
	return nil
}

// come takes over what a pod is now.
func (p *Plugin) come(pod *corev1.Pod) {
	b := p.book
	b.mu.Lock()
	had := b.of[pod.UID]
	if had == nil && (p.isNative(pod) || !gang.Mentions(pod)) {
		b.mu.Unlock()
		return
	}
	e, changed := b.put(pod)
	if e == nil {
		e = had
	}
	var waiting []types.UID
	var why string
	if e != nil && changed {
		waiting, why = b.shrunk(e)
	}
	b.mu.Unlock()
	p.reject(waiting, why)
	if e != nil && changed {
		p.wake(e.key)
	}
}

// another is called when a node is not what it was: nobody avoids it any longer.
func (p *Plugin) another(node string) {
	p.shy.forgive(node)
	var again []types.NamespacedName
	p.book.mu.Lock()
	for key, e := range p.book.gangs {
		if _, ok := e.avoid[node]; ok {
			delete(e.avoid, node)
			again = append(again, key)
		}
	}
	p.book.mu.Unlock()
	for _, key := range again {
		p.wake(key)
	}
}

// gone forgets a pod.
func (p *Plugin) gone(pod *corev1.Pod) {
	uid := pod.UID
	if pod.Spec.NodeName != "" {
		p.another(pod.Spec.NodeName)
	}
	p.mu.Lock()
	delete(p.blocked, uid)
	delete(p.decisions, uid)
	p.mu.Unlock()
	b := p.book
	b.mu.Lock()
	e := b.remove(uid)
	var waiting []types.UID
	var why string
	if e != nil {
		if e.leader == uid {
			b.refuse(e, e.refusal, "")
		}
		waiting, why = b.shrunk(e)
	}
	b.mu.Unlock()
	p.reject(waiting, why)
	if e != nil {
		p.wake(e.key)
	}
}

// shrunk frees what a gang holds that is no longer complete.
func (b *book) shrunk(e *entry) (waiting []types.UID, why string) {
	if e.deadline.IsZero() {
		return nil, ""
	}
	ok, why := b.complete(e)
	if ok && e.fault == nil {
		b.promise()
		return nil, ""
	}
	if e.fault != nil {
		why = e.fault.Error()
	}
	unit, _ := b.unit(e)
	return b.release(unit, why), why
}
