package gangcache

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// This file has what depends on how long gangs wait: the order of the queue, and
// reservations in advance. Who gets one is in package queue.

// QueueKey is what the place of a pod in the scheduler's queue depends on: that of its gang,
// whose pods have one place together.
func (c *Cache) QueueKey(pod *corev1.Pod) queue.Gang {
	m := c.lock(pod)
	defer c.unlock()
	if m != nil {
		return queue.Gang{Priority: m.priority(), Created: m.gang.created, Name: m.gang.key.String()}
	}
	return queue.Gang{Priority: schedulehelpers.PodPriority(pod), Created: pod.CreationTimestamp.Time}
}

// RunsInPart reports whether a pod is of a gang that had its nodes: a member that was
// made again does not wait for what is reserved for others.
func (c *Cache) RunsInPart(pod *corev1.Pod) bool {
	m := c.lock(pod)
	defer c.unlock()
	return m != nil && m.gang.once && m.gang.have(bound) > 0
}

// born keeps the earliest creation of a gang's pods and objects.
func (g *gangInfo) born(at time.Time) {
	if g.created.IsZero() || at.Before(g.created) {
		g.created = at
	}
}

// due are the gangs for which room is to be reserved in advance, or again. One that no
// departures would make room for is left out for a while, and holds up no other.
func (all *gangs) due(now time.Time) map[*gangInfo]bool {
	var waiting []queue.Gang
	var of []*gangInfo
	for _, g := range all.byKey {
		if g.rejected.reason == "" || g.rejected.leader == nil || !g.deadline.IsZero() ||
			now.Before(g.noRoomUntil) || g.satisfied() {
			continue
		}
		of = append(of, g)
		waiting = append(waiting, queue.Gang{
			Priority: g.rejected.leader.priority(), Created: g.created, Name: g.key.String(),
			Rejected: g.rejected.since, Start: g.advance.Start,
		})
	}
	due := map[*gangInfo]bool{}
	for _, i := range queue.Due(waiting, all.ReserveAfter, now) {
		due[of[i]] = true
	}
	return due
}

// Reservations are those of all gangs but what is reserved in advance for some.
func (c *Cache) Reservations(but ...planner.Gang) fit.Reservations {
	c.mu.Lock()
	defer c.unlock()
	own := map[*gangInfo]bool{}
	for i := range but {
		if g := c.byKey[but[i].Key]; g != nil && !g.advance.Start.IsZero() {
			own[g] = true
		}
	}
	if len(own) == 0 {
		return c.reservations
	}
	return c.reserved(own)
}

// Reserve reserves room in advance for gangs, the first of which was tried. It does
// nothing if that is no longer there.
func (c *Cache) Reserve(planned []planner.Gang, advance planner.Advance) {
	c.mu.Lock()
	defer c.unlock()
	g := c.byKey[planned[0].Key]
	if g == nil {
		return
	}
	if planned[0].Due && advance.Start.IsZero() {
		g.noRoomUntil = time.Now().Add(reasonEvery)
	}
	if !g.advance.Start.Equal(advance.Start) {
		c.giveBack(g)
		g.advance = advance
		c.renew()
	}
}
