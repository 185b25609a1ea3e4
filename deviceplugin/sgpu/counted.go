package sgpu

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/plugin"
	"github.com/heddle-dev/heddle/sharing"
)

// Cores is how many devices of vcore a card is worth, GiB how many of vmemory:
// whole ones, since a request is for one card.
func Cores(*sharing.Card) int { return sharing.Whole }

// GiB is how many devices of vmemory a card is worth; see [Cores].
func GiB(c *sharing.Card) int { return int(c.MemoryMiB / 1024) }

// Counted is a resource that is only counted, as a [plugin.Resource]: devices
// without a card, such as vcore-0017, as many as all healthy shared cards are
// worth together. What a container has of which card is not theirs to say; they
// are a coarse gate for schedulers that know no cards. Its calls answer nothing,
// and its plugin is to skip GetPreferredAllocation and PreStartContainer.
type Counted struct {
	word    string
	cards   func() []sharing.Card
	worth   func(*sharing.Card) int
	changed chan struct{}

	mu      sync.Mutex // guards devices
	devices []plugin.Device
}

var _ plugin.Resource = (*Counted)(nil)

// NewCounted makes the resource and takes its first snapshot. The word begins
// its device IDs.
func NewCounted(word string, cards func() []sharing.Card, worth func(*sharing.Card) int) *Counted {
	r := &Counted{word: word, cards: cards, worth: worth, changed: make(chan struct{}, 1)}
	r.Refresh()
	return r
}

// Refresh counts again.
func (r *Counted) Refresh() {
	n := 0
	cards := r.cards()
	for i := range cards {
		if cards[i].Against == "" {
			n += r.worth(&cards[i])
		}
	}
	devices := make([]plugin.Device, n)
	for i := range devices {
		devices[i] = plugin.Device{ID: fmt.Sprintf("%s-%04d", r.word, i), Healthy: true}
	}
	slices.SortFunc(devices, func(a, b plugin.Device) int { return strings.Compare(a.ID, b.ID) })
	r.mu.Lock()
	differs := len(r.devices) != n
	r.devices = devices
	r.mu.Unlock()
	if differs {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// Devices implements [plugin.Resource].
func (r *Counted) Devices() []plugin.Device {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.devices
}

// Changed implements [plugin.Resource].
func (r *Counted) Changed() <-chan struct{} { return r.changed }

// Prefer leaves the choice to the kubelet: all are the same.
func (*Counted) Prefer([]string, []string, int) ([]string, error) { return nil, nil }

// Allocate gives a container nothing.
func (*Counted) Allocate(context.Context, []string) (*v1beta1.ContainerAllocateResponse, error) {
	return &v1beta1.ContainerAllocateResponse{}, nil
}

// PreStart does nothing.
func (*Counted) PreStart(context.Context, []string) error { return nil }
