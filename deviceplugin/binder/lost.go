package binder

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// A kubelet that has just started hears of its pods within a second or so, and
// gives devices to new ones at once.
const (
	searchFor   = 3 * time.Second
	searchEvery = 100 * time.Millisecond
)

// Lost are the device IDs of a resource that running containers have and that
// the kubelet takes for free, because it lost its checkpoint; each with who has
// it. It gives them to the next pod that asks. While a kubelet starts and
// nobody knows yet, they are all that were bound to pods that are not known to
// be gone.
func (b *Binder) Lost(resource string) map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lostLocked(resource, b.unsure)
}

// lostLocked is for holders of mu.
func (b *Binder) lostLocked(resource string, all bool) map[string]string {
	if len(b.lost) == 0 && !all {
		return nil
	}
	lost := make(map[string]string)
	for _, r := range b.records {
		if r.Resource != resource || r.Owner == nil {
			continue
		}
		if !b.lost[*r.Owner] && (!all || b.knownGone(r.Owner.Pod)) {
			continue
		}
		for _, id := range r.IDs {
			lost[id] = fmt.Sprintf("container %s of %s", r.Owner.Container, r.Owner.Pod)
		}
	}
	return lost
}

// knownGone tells whether the API server has shown that a pod is not on this
// node any more.
func (b *Binder) knownGone(p Pod) bool {
	if b.options.Known == nil {
		return false
	}
	pod, complete := b.options.Known(p)
	return complete && pod == nil
}

// refuse keeps a container from starting on a GPU that another one still has,
// whole or in part. HCAs can be shared, and are chosen anew; shares of what
// another container has are refused where they are chosen.
func (b *Binder) refuse(held []holding, now *account) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var claims []claim
	for i := range held {
		resource := held[i].resource
		if kind, _, err := kindOf(b.options.Config(), resource); err != nil || kind != kindGPU {
			continue // HCAs, or what has left the configuration.
		}
		lost := b.lostLocked(resource, false)
		if claims == nil {
			claims = b.ledgerLocked(now).claims
		}
		for _, id := range held[i].ids {
			parent := parentOf(b.options.Machine(), id)
			at := slices.IndexFunc(claims, func(c claim) bool { return c.Share.UUID == parent })
			if at >= 0 && !claims[at].same(held[i].Pod) {
				return fmt.Errorf("%s %s is shared by container %s of %s", resource, id, claims[at].Container, claims[at].Pod)
			}
			if who := lost[id]; who != "" {
				return fmt.Errorf("%s %s is in use by %s, which the kubelet has forgotten: delete that pod", resource, id, who)
			}
		}
	}
	return nil
}

// tellLost warns of containers that were bound, whose pod is there, and that
// the kubelet knows no devices of: its checkpoint was lost.
func (b *Binder) tellLost(ctx context.Context, now *account) {
	lacking := now.lacking()
	b.mu.Lock()
	found := make(map[owner]bool)
	for _, r := range b.records {
		if r.Owner != nil && lacking(*r.Owner) && !b.lost[*r.Owner] && r.decided <= now.at {
			found[*r.Owner] = true
		}
	}
	for o := range b.lost {
		if !lacking(o) {
			delete(b.lost, o)
		}
	}
	b.mu.Unlock()
	for o := range found {
		if !b.exists(ctx, o.Pod) {
			continue // Another pod has its name by now.
		}
		b.mu.Lock()
		told := b.lost[o]
		b.lost[o] = true
		b.mu.Unlock()
		if told {
			continue
		}
		message := fmt.Sprintf("the kubelet has lost the devices of container %s: it runs on, and cannot start again; "+
			"delete the pod to have it made anew", o.Container)
		b.options.Log.Warn("devices lost", "pod", o.String(), "container", o.Container)
		if b.options.Events != nil {
			b.options.Events.Warn(o.Pod, DevicesLost, message)
		}
	}
}

// searchLost looks for losses again and again while a kubelet starts.
func (b *Binder) searchLost(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchFor)
	defer cancel()
	defer func() {
		b.mu.Lock()
		b.unsure = false
		b.mu.Unlock()
	}()
	for {
		if now, err := b.look(ctx); err == nil {
			b.tellLost(ctx, now)
		}
		if !rest(ctx, searchEvery) {
			return
		}
	}
}

// exists tells whether this very pod is there; without anybody to ask, that
// one of its name is.
func (b *Binder) exists(ctx context.Context, p Pod) bool {
	if b.options.PodSpecs == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, specTimeout)
	defer cancel()
	_, err := b.options.PodSpecs.Pod(ctx, p)
	return err == nil
}

// lacking makes a function that tells whether PodResources lists a container
// by its pod's name, and neither of the kubelet's accounts has devices of it.
func (a *account) lacking() func(owner) bool {
	listed := make(map[owner]bool)
	for _, p := range a.pods {
		for _, c := range p.GetContainers() {
			listed[owner{Pod{Namespace: p.GetNamespace(), Name: p.GetName()}, c.GetName()}] = true
		}
	}
	// The checkpoint alone knows no names, and PodResources no UIDs.
	named, numbered := make(map[owner]bool), make(map[owner]bool)
	for i := range a.holdings {
		o := a.holdings[i].owner
		numbered[owner{Pod{UID: o.UID}, o.Container}] = o.UID != ""
		named[nameOnly(o)] = o.Name != ""
	}
	return func(o owner) bool {
		return listed[nameOnly(o)] && !named[nameOnly(o)] && !numbered[owner{Pod{UID: o.UID}, o.Container}]
	}
}

func nameOnly(o owner) owner {
	o.UID = ""
	return o
}
