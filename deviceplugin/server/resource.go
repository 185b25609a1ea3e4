package server

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/internal/notify"
)

// Device is one unit of a resource as the kubelet counts it.
type Device struct {
	// ID is unique within the resource and means the same device over
	// restarts of everything.
	ID      string
	Healthy bool
	// NUMA are the nodes that the device is near to; none means no preference.
	NUMA []int64
}

// Resource has the devices of a Plugin. Its calls never wait for hardware.
type Resource interface {
	// Devices is an immutable snapshot, sorted by ID. It must be complete
	// before the Plugin runs: an ID that is missing from the first list, and
	// that a pod holds, is shown as unhealthy.
	Devices() []Device
	// Changed receives when Devices may differ. Its capacity is one; the
	// Plugin is its only reader.
	Changed() <-chan struct{}
	// Prefer chooses size IDs of available, all of must among them. An error,
	// or fewer IDs, leaves the choice to the kubelet and never fails a pod.
	Prefer(available, must []string, size int) ([]string, error)
	Allocator
}

// Allocator allocates devices to containers. The ids of a call are the kubelet's,
// unsorted.
type Allocator interface {
	// Allocate answers for one container. Its error fails the pod for good
	// (UnexpectedAdmissionError).
	Allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error)
	// PreStart runs before every start of a container that holds ids, within
	// 30 s. Its error is shown on the pod, and the kubelet tries again.
	PreStart(ctx context.Context, ids []string) error
}

// List is the current offer of a [Resource]: its Devices and Changed, to
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
// sorts them, reports whether they differ from those before, and if so lets
// Changed receive. Those before stay if they do not.
func (l *List) Offer(devices []Device) (differ bool) {
	sortByID(devices)
	if slices.EqualFunc(l.Devices(), devices, Device.equal) {
		return false
	}
	l.devices.Store(&devices)
	l.changed.Notify()
	return true
}

func sortByID(devices []Device) {
	slices.SortFunc(devices, func(a, b Device) int { return strings.Compare(a.ID, b.ID) })
}

// find looks an ID up in devices that are sorted by ID.
func find(devices []Device, id string) (at int, found bool) {
	return slices.BinarySearchFunc(devices, id, func(d Device, id string) int { return strings.Compare(d.ID, id) })
}

func (d Device) equal(other Device) bool {
	return d.ID == other.ID && d.Healthy == other.Healthy && slices.Equal(d.NUMA, other.NUMA)
}
