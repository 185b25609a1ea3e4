package sgpu

import (
	"context"
	"fmt"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Cores is how many devices of vcore a card is worth, GiB how many of vmemory:
// whole ones, since a request is for one card.
func Cores(*quota.GPU) int { return quota.Whole }

// GiB is how many devices of vmemory a card is worth; see [Cores].
func GiB(c *quota.GPU) int { return int(c.MemoryMiB / 1024) }

// Counted is a resource that is only counted, as a [server.Resource]: devices
// without a card, such as vcore-0017, as many as all healthy shared cards are
// worth together. What a container has of which card is not theirs to say; they
// are a coarse gate for schedulers that know no cards. Its calls answer nothing,
// and its plugin is to skip GetPreferredAllocation and PreStartContainer.
type Counted struct {
	*server.List
	word  string
	cards func() []quota.GPU
	worth func(*quota.GPU) int
}

var _ server.Resource = (*Counted)(nil)

// NewCounted makes the resource and takes its first snapshot. The word begins
// its device IDs.
func NewCounted(word string, cards func() []quota.GPU, worth func(*quota.GPU) int) *Counted {
	r := &Counted{List: server.NewList(), word: word, cards: cards, worth: worth}
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
	devices := make([]server.Device, n)
	for i := range devices {
		devices[i] = server.Device{ID: fmt.Sprintf("%s-%04d", r.word, i), Healthy: true}
	}
	r.Offer(devices)
}

// Prefer leaves the choice to the kubelet: all are the same.
func (*Counted) Prefer([]string, []string, int) ([]string, error) { return nil, nil }

// Allocate gives a container nothing.
func (*Counted) Allocate(context.Context, []string) (*v1beta1.ContainerAllocateResponse, error) {
	return &v1beta1.ContainerAllocateResponse{}, nil
}

// PreStart does nothing.
func (*Counted) PreStart(context.Context, []string) error { return nil }
