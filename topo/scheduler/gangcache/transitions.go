package gangcache

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// This file has what happens to gangs: their pods and objects change, a plan is committed,
// nodes are given back, a try is rejected.

// get is the gang of a name, which is created if it is missing.
func (all *gangs) get(key types.NamespacedName) *gangInfo {
	g := all.byKey[key]
	if g == nil {
		g = &gangInfo{
			key: key, members: map[types.UID]*member{}, objects: map[string]object{},
			outdated: true, incompleteSince: time.Now(),
		}
		all.byKey[key] = g
	}
	return g
}

// lost is called when a gang lost a member or an object. One without any is forgotten.
func (all *gangs) lost(g *gangInfo) {
	g.invalidate()
	if len(g.members) == 0 && len(g.objects) == 0 {
		delete(all.byKey, g.key)
	}
}

// put takes over what a pod is now. The member is nil for a pod in no gang. changed
// reports that it is another one than before.
func (all *gangs) put(pod *corev1.Pod) (m *member, changed bool) {
	spec, err := gang.Read(pod, all.Domains)
	m = all.of(pod)
	none := errors.Is(err, gang.ErrNoGang) || spec.Key.Name == ""
	if m != nil && (none || m.gang.key != spec.Key) {
		all.remove(m)
		m, changed = nil, true
	}
	if none {
		return nil, changed
	}
	var previous member
	if m == nil {
		m = &member{gang: all.get(spec.Key), resources: all.NewMember(pod)}
		m.gang.members[pod.UID], all.members[pod.UID] = m, m
		changed = true
	} else {
		previous = *m
	}
	m.gang.born(pod.CreationTimestamp.Time)
	m.pod, m.spec, m.err = pod, spec, cmp.Or(err, all.foreign(&spec))
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
		m.stage, m.node, m.unbound = bound, pod.Spec.NodeName, false
		m.gang.once = m.gang.once || m.live()
	}
	return m, changed
}

// remove forgets a member.
func (all *gangs) remove(m *member) {
	delete(all.members, m.pod.UID)
	delete(m.gang.members, m.pod.UID)
	if g := m.gang; g.rejected.leader == m {
		g.elect(nil)
	}
	m.gang.preemption.tried(m.pod.UID)
	all.lost(m.gang)
}

// changed releases what a gang holds that is no longer complete, and tries the gang again.
func (all *gangs) changed(g *gangInfo) {
	all.retry(g.key)
	if g.deadline.IsZero() && g.advance.Start.IsZero() {
		return
	}
	reason := all.incomplete(g)
	if g.err != nil {
		reason = g.err.Error()
	}
	if reason != "" || all.byKey[g.key] != g {
		all.giveBack(g)
	}
	if reason != "" && !g.deadline.IsZero() {
		all.release(g, reason)
		return
	}
	all.renew()
}

// commit gives members the nodes of plans, which end the rejections of their gangs, and activates
// those that have something to try, but for the pod that is tried. It does nothing, and reports
// false, if a gang changed while it was planned.
func (all *gangs) commit(unit []planner.Gang, tried *corev1.Pod, plans []planner.Plan, leaving []*corev1.Pod) bool {
	for i := range unit {
		if g := all.byKey[unit[i].Key]; g == nil || g.revision != unit[i].Revision {
			return false
		}
	}
	p := newPreemption(leaving)
	for i := range plans {
		g := all.byKey[unit[i].Key]
		again := g.commit(unit[i].Members, &plans[i], p)
		if g.rejected.reason != "" {
			// What came while the leader was in its cycle woke none of the others, and may not be
			// in the plan.
			again = append(again, g.ranked((*member).waits)...)
			g.rejected.accept()
		}
		for _, m := range again {
			if m.pod.UID != tried.UID {
				all.effects.activate(m.pod)
			}
		}
		all.giveBack(g)
	}
	all.renew()
	return true
}

// leave releases the gangs with a member that an obstacle keeps off its node; now is nil if
// the node is gone.
func (all *gangs) leave(node string, now *corev1.Node) {
	for _, g := range all.byKey {
		if g.deadline.IsZero() {
			continue
		}
		for _, m := range g.members {
			if m.node != node || !m.onItsWay() {
				continue
			}
			if obstacle := m.resources.Class.Obstacle(now); obstacle != "" {
				all.release(g, fmt.Sprintf("member %s lost its place on node %s: %s", m.pod.Name, node, obstacle))
				all.retry(g.key)
				break
			}
		}
	}
}

// renew makes the reservations those of now. Those of a gang have ended once all of its
// members are being bound.
func (all *gangs) renew() {
	for _, g := range all.byKey {
		if !g.deadline.IsZero() && !g.any((*member).onItsWay) {
			g.deadline = time.Time{}
		}
	}
	all.reservations = all.reserved(nil)
}

// giveBack ends what is reserved in advance for a gang.
func (all *gangs) giveBack(g *gangInfo) {
	if !g.advance.Start.IsZero() {
		g.advance = planner.Advance{}
		all.effects.retryAll = true
	}
}

// release takes back what a gang, and those that it runs with, have reserved or
// hold, unless it is being bound.
func (all *gangs) release(g *gangInfo, reason string) {
	unit, _ := all.unit(g)
	for _, g := range unit {
		for _, m := range g.members {
			if m.stage == reserved {
				all.effects.Reject[m.pod.UID] = g.rejection(reason)
				m.stage, m.node = pending, ""
				all.effects.retryAll = true
			}
		}
		g.unplan()
		g.deadline, g.preemption = time.Time{}, nil
		all.reject(g, reason, nil)
	}
	all.renew()
}

// unplan takes the nodes of planned members back, and those of the gangs for which the
// same pods must leave: they are planned together again.
func (all *gangs) unplan(g *gangInfo) {
	unit, _ := all.unit(g)
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
	all.renew()
}

// reject records why a gang has no nodes, and which member tries again.
func (all *gangs) reject(g *gangInfo, reason string, leader *member) {
	if g.rejected.record(reason, time.Now()) {
		all.Metrics.rejections.Inc()
	}
	g.elect(leader)
}
