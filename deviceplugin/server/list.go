package server

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/heddle-dev/heddle/internal/notify"
)

// List is what a [Resource] offers now: its Devices and Changed, for one to
// embed. Its methods may be called from any goroutine.
type List struct {
	devices atomic.Pointer[[]Device]
	changed notify.Signal
}

// NewList returns a list without devices.
func NewList() *List {
	l := &List{changed: notify.New()}
	l.devices.Store(new([]Device))
	return l
}

// Devices implements [Resource].
func (l *List) Devices() []Device { return *l.devices.Load() }

// Changed implements [Resource].
func (l *List) Changed() <-chan struct{} { return l.changed }

// Offer replaces the devices by others, which are the list's from now on. It
// sorts them, tells whether they differ from those before, and if so lets
// Changed receive.
func (l *List) Offer(devices []Device) (differ bool) {
	slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(a.ID, b.ID) })
	if slices.EqualFunc(*l.devices.Swap(&devices), devices, Device.equal) {
		return false
	}
	l.changed.Notify()
	return true
}

func (d Device) equal(other Device) bool {
	return d.ID == other.ID && d.Healthy == other.Healthy && slices.Equal(d.NUMA, other.NUMA)
}
