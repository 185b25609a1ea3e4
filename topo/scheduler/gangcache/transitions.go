package gangcache

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// get returns the gang of a name, and creates it if it is missing.
func (c *Cache) get(key types.NamespacedName) *gangInfo {
	g := c.byKey[key]
	if g == nil {
		g = &gangInfo{
			key: key, members: map[types.UID]*member{}, objects: map[string]object{},
			outdated: true, incompleteSince: time.Now(),
		}
		c.byKey[key] = g
	}
	return g
}

// lost is called when members or objects of a gang changed. A gang without both is forgotten.
func (c *Cache) lost(g *gangInfo) {
	g.invalidate()
	if len(g.members) == 0 && len(g.objects) == 0 {
		delete(c.byKey, g.key)
	}
}

// put takes over a new or changed pod. The member is nil for a pod of no gang.
func (c *Cache) put(pod *corev1.Pod) (m *member, changed bool) {
	spec, err := gang.Read(pod, c.Domains)
	m = c.members[pod.UID]
	none := errors.Is(err, gang.ErrNoGang) || spec.Key.Name == ""
	if m != nil && (none || m.gang.key != spec.Key) {
		c.remove(m)
		m, changed = nil, true
	}
	if none {
		return nil, changed
	}
	var previous member
	if m == nil {
		m = &member{gang: c.get(spec.Key), Member: c.NewMember(pod)}
		m.gang.members[pod.UID], c.members[pod.UID] = m, m
		changed = true
	} else {
		previous = *m
		if len(m.Pod.Status.ResourceClaimStatuses) != len(pod.Status.ResourceClaimStatuses) {
			c.retry(spec.Key) // It may have been rejected for a claim that was not created yet.
		}
	}
	m.gang.born(pod.CreationTimestamp.Time)
	m.Pod, m.spec, m.err = pod, spec, err
	if !changed {
		changed = !reflect.DeepEqual(previous.spec, spec) || (previous.err == nil) != (m.err == nil) ||
			previous.live() != m.live()
	}
	if changed {
		m.gang.invalidate()
	}
	switch {
	case finished(pod):
		m.stage = done
		m.gang.once = m.gang.once || pod.Spec.NodeName != "" && m.gang.started()
	case pod.Spec.NodeName != "":
		m.stage, m.Node, m.unbound = bound, pod.Spec.NodeName, false
		m.gang.once = m.gang.once || m.live()
	}
	return m, changed
}

// remove forgets a member.
func (c *Cache) remove(m *member) {
	delete(c.members, m.Pod.UID)
	delete(m.gang.members, m.Pod.UID)
	if m.gang.rejected.leader == m {
		m.gang.elect(nil)
	}
	c.lost(m.gang)
	c.changed(m.gang)
}

// changed releases the nodes of a gang that is no longer complete, and tries the gang again.
func (c *Cache) changed(g *gangInfo) {
	c.retry(g.key)
	c.endHold(g)
	if g.deadline.IsZero() {
		return
	}
	reason := c.incomplete(g)
	if g.err != nil {
		reason = g.err.Error()
	}
	if reason != "" {
		c.release(g, reason)
		return
	}
	c.renew()
}

// leave releases the gangs with a member on its way to a node that no longer takes it. now is
// nil if the node was deleted.
func (c *Cache) leave(node string, now *corev1.Node) {
	for _, g := range c.byKey {
		if g.deadline.IsZero() {
			continue
		}
		for _, m := range g.members {
			if m.Node != node || !m.onItsWay() {
				continue
			}
			if obstacle := m.Class.Obstacle(now); obstacle != "" {
				c.release(g, fmt.Sprintf("member %s lost its place on node %s: %s", m.Pod.Name, node, obstacle))
				c.retry(g.key)
				break
			}
		}
	}
}

// renew makes the reservations again. Those of a gang end once all of its members are being
// bound. A member that is being bound is on its node already.
func (c *Cache) renew() {
	c.reservations = planner.Reservations{}
	for _, g := range c.byKey {
		if g.deadline.IsZero() {
			continue
		}
		some := false
		for _, m := range g.members {
			if m.onItsWay() {
				c.reservations[m.Node] = append(c.reservations[m.Node], m.Reservation())
				some = true
			}
		}
		if !some {
			g.deadline = time.Time{}
		}
	}
	c.withHold = c.reservations.With(c.spares).With(c.heldNodes())
}

// release takes back what a gang, and those that it runs with, have reserved or hold, unless
// it is being bound.
func (c *Cache) release(g *gangInfo, reason string) {
	unit, _ := c.unit(g)
	for _, g := range unit {
		for _, m := range g.members {
			if m.stage == reserved {
				c.effects.Reject[m.Pod.UID] = g.rejection(reason)
				m.stage, m.Node = pending, ""
				c.effects.retryAll = true
			}
		}
		g.unplan()
		g.deadline, g.preemption = time.Time{}, nil
		c.reject(g, reason, nil)
	}
	c.renew()
}

// unplan takes back the nodes of planned members, and of the gangs that wait for the same pods to
// leave: they are planned together again.
func (c *Cache) unplan(g *gangInfo) {
	unit, _ := c.unit(g)
	shared := g.preemption
	for _, u := range unit {
		together := shared != nil && u.preemption == shared
		if u == g || together {
			u.unplan()
		}
		if together {
			u.preemption, u.deadline = nil, time.Time{}
		}
	}
	c.renew()
}

// reject records why a gang has no nodes, and which member tries again. The others are tried to
// show a reason of another kind.
func (c *Cache) reject(g *gangInfo, reason string, leader *member) {
	r, now := &g.rejected, time.Now()
	first := r.reason == ""
	other := !first && kindOf(r.reason) != kindOf(reason) && now.Sub(r.shared) >= shareEvery
	if r.reason = reason; r.since.IsZero() {
		r.since = now
	}
	if first {
		c.Metrics.rejections.Inc()
	}
	if g.elect(leader); other {
		r.shared = now
		for _, m := range g.members {
			if m.schedulable() {
				c.effects.activate(m.Pod)
			}
		}
	}
}
