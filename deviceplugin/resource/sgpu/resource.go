// Package sgpu hands out shares of GPUs: slots of shared GPUs (`sgpu`), and what
// a share is counted in, percent of compute (`vcore`) and GiB (`vmemory`).
//
// A slot names a GPU, which only helps readers of the kubelet's PodResources:
// which GPU a container gets, and how much of it, is decided when it starts.
// Percents and GiB name no GPU at all. The package keeps no account of who has
// what, and opens no GPU; its calls read an immutable snapshot, which Refresh
// replaces.
package sgpu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// separator is between the card and the slot of a device ID.
const separator = "::"

// Slot is the device ID of one slot of a card: GPU-…::3.
func Slot(uuid string, slot int) string { return uuid + separator + strconv.Itoa(slot) }

// ParseSlot is the reverse of [Slot].
func ParseSlot(id string) (uuid string, slot int, err error) {
	at := strings.LastIndex(id, separator)
	if at <= 0 {
		return "", 0, fmt.Errorf("device ID %q is no card and slot, such as GPU-…::3", id)
	}
	slot, err = strconv.Atoi(id[at+len(separator):])
	if err != nil || slot < 0 || strconv.Itoa(slot) != id[at+len(separator):] {
		return "", 0, fmt.Errorf("device ID %q has no slot number after %q", id, separator)
	}
	return id[:at], slot, nil
}

// State decides which cards a container gets.
type State interface {
	// Allocate makes the CDI device of one Allocate call.
	Allocate(resource string, ids []string) (string, error)
	// Prepare puts cards behind the names of those that hold ids.
	Prepare(ctx context.Context, resource string, ids []string) error
	// Assigned is which card a ticket in use stands for, by ticket.
	Assigned(resource string) map[string]string
}

// Static is the driver's own CDI spec.
type Static interface {
	Names(ids []string) []string
	Restore() error
}

// Pods guesses for whom the kubelet is asking.
type Pods interface {
	// Expected are the cards, best first, that a container will be bound to that
	// may be meant by a request for so many slots; none if nobody knows.
	Expected(size int) []string
}

// Options are what a Resource works with.
type Options struct {
	// Name is the full name: nvidia.com/sgpu.
	Name  string
	State State
	// Static is nil where there is no CDI: then nothing is named of it.
	Static Static
	// Pods may be nil.
	Pods Pods
	// Log defaults to none.
	Log *slog.Logger
}

// Resource is the slots of shared cards, as a [server.Resource]. Its methods
// may be called at once.
type Resource struct {
	*server.List
	options Options
	// faults are why cards are not handed out, by UUID.
	faults atomic.Pointer[map[string]string]

	// mu makes refreshes take turns and guards seen.
	mu   sync.Mutex
	seen map[string]bool
}

var _ server.Resource = (*Resource)(nil)

// New makes the resource and takes its first snapshot.
func New(o Options, inv *inventory.Inventory) *Resource {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Resource{List: server.NewList(), options: o, seen: map[string]bool{}}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot. Under a name that the configuration has no more
// there are no slots but those that containers have.
func (r *Resource) Refresh(inv *inventory.Inventory) {
	var shared []quota.GPU
	if inv.Config.Resources.SGPU == r.options.Name {
		shared = inv.Shared
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	devices, faults := r.devices(shared)
	r.faults.Store(&faults)
	for i := range devices {
		r.seen[devices[i].ID] = true
	}
	if r.Offer(devices) {
		r.options.Log.Info("slots changed", "resource", r.options.Name, "devices", len(devices), "faults", len(faults))
	}
}

// devices are the slots, with what is against GPUs. A slot is as healthy as the
// GPU that it names, or once bound, as the one that it stands for; so all slots
// of an unused GPU go together.
func (r *Resource) devices(cards []quota.GPU) (devices []server.Device, faults map[string]string) {
	bound := r.options.State.Assigned(r.options.Name)
	faults = map[string]string{}
	well := make(map[string]bool, len(cards))
	for i := range cards {
		c := &cards[i]
		well[c.UUID] = c.Unhealthy == ""
		if c.Unhealthy != "" {
			faults[c.UUID] = c.Unhealthy
		}
	}
	for i := range cards {
		c := &cards[i]
		var numa []int64
		if c.NUMA >= 0 {
			numa = []int64{int64(c.NUMA)}
		}
		for slot := range c.Slots {
			d := server.Device{ID: Slot(c.UUID, slot), Healthy: well[c.UUID], NUMA: numa}
			if card, ok := bound[d.ID]; ok {
				d.Healthy = well[card]
			}
			devices = append(devices, d)
		}
	}
	return devices, faults
}

// Faults says of every card that nobody new gets why, by UUID.
func (r *Resource) Faults() map[string]string { return maps.Clone(*r.faults.Load()) }

// Prefer implements [server.Resource].
func (r *Resource) Prefer(available, must []string, size int) ([]string, error) {
	var wanted []string
	if r.options.Pods != nil {
		wanted = r.options.Pods.Expected(size)
	}
	return Prefer(available, must, wanted, size)
}

// Allocate implements [server.Allocator]: a CDI name that nobody had before,
// and what the driver's spec brings every container with a GPU. It refuses only
// slots that nobody offered, and a name that cannot be recorded.
func (r *Resource) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if len(ids) == 0 {
		return nil, errors.New("no device IDs")
	}
	r.mu.Lock()
	for _, id := range ids {
		if !r.seen[id] {
			r.mu.Unlock()
			return nil, fmt.Errorf("%s has no device %q", r.options.Name, id)
		}
	}
	r.mu.Unlock()
	name, err := r.options.State.Allocate(r.options.Name, ids)
	if err != nil {
		return nil, err
	}
	response := &v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{{Name: name}}}
	if r.options.Static != nil {
		for _, static := range r.options.Static.Names([]string{cdi.CommonDevice}) {
			response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: static})
		}
	}
	return response, nil
}

// PreStart implements [server.Allocator].
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	if r.options.Static != nil {
		if err := r.options.Static.Restore(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.options.State.Prepare(ctx, r.options.Name, ids)
}
