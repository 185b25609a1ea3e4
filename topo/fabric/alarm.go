package fabric

import (
	"container/heap"
	"time"
)

// alarm is when a node has to be looked at again although nothing of it
// changed.
type alarm struct {
	at     time.Time
	record *record
}

// alarms is a heap of them.
type alarms []alarm

// Len is heap.Interface's.
func (a *alarms) Len() int { return len(*a) }

// Less and Swap are heap.Interface's too.
func (a *alarms) Less(i, j int) bool { return (*a)[i].at.Before((*a)[j].at) }

// Swap exchanges two.
func (a *alarms) Swap(i, j int) { (*a)[i], (*a)[j] = (*a)[j], (*a)[i] }

// Push and Pop are heap.Interface's.
func (a *alarms) Push(x any) {
	if v, ok := x.(alarm); ok {
		*a = append(*a, v)
	}
}

// Pop takes the last.
func (a *alarms) Pop() any {
	last := len(*a) - 1
	v := (*a)[last]
	(*a)[last] = alarm{}
	*a = (*a)[:last]
	return v
}

// alarm asks for another look. An earlier one that is due serves as well: it
// sets the next.
func (m *Map) alarm(r *record, at time.Time) {
	if !r.alarm.IsZero() && !at.Before(r.alarm) {
		return
	}
	r.alarm = at
	m.alarms = append(m.alarms, alarm{at, r}) // As heap.Push, without the interface's allocation.
	heap.Fix(&m.alarms, len(m.alarms)-1)
}

// ring marks the nodes whose heartbeats have become old meanwhile.
func (m *Map) ring() {
	for len(m.alarms) > 0 && !m.alarms[0].at.After(m.now) {
		a, ok := heap.Pop(&m.alarms).(alarm)
		if !ok {
			return
		}
		if a.record.alarm.Equal(a.at) {
			a.record.alarm = time.Time{}
		}
		if !a.record.isGone {
			m.dirty(a.record)
		}
	}
}
