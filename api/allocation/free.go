package allocation

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// FreeGPUs are the exclusive GPUs of a Node that are free: the annotation
// heddle.dev/free-gpus, for pods that name the GPUs which they accept. It lacks
// the pods that came to the Node since it was written; a scheduler derives their
// number from Held.
type FreeGPUs struct {
	Version int `json:"version"`
	// Held is the number of devices of the resource that containers hold.
	Held int `json:"held"`
	// Free are the healthy devices that no pod holds, sorted by UUID.
	Free []FreeGPU `json:"free"`
	// Others holds the free GPUs of another vendor on the Node, by resource, without Others. Then
	// Resource names the resource of this list; it is empty on other Nodes.
	Others   map[string]FreeGPUs `json:"others,omitempty"`
	Resource string              `json:"resource,omitempty"`
}

// Of returns the free GPUs of a resource of whole GPUs; nil if the Node does not publish it.
func (f *FreeGPUs) Of(resource string) *FreeGPUs {
	if other, ok := f.Others[resource]; ok {
		return &other
	}
	if f.Resource != "" && f.Resource != resource {
		return nil
	}
	return f
}

// FreeGPU is an exclusive GPU, or a MIG device that is allocated as one.
type FreeGPU struct {
	UUID string `json:"uuid"`
	// Of is the GPU that a MIG device is cut from; empty for a GPU.
	Of string `json:"of,omitempty"`
}

// maxFree is the most GPUs of a node, each cut into seven.
const maxFree = MaxGPUs * 7

// ParseFreeGPUs reads an annotation.
func ParseFreeGPUs(text string) (*FreeGPUs, error) {
	return parse("free GPUs", text, (*FreeGPUs).check)
}

func (f *FreeGPUs) check() error {
	if err := checkVersion(f.Version); err != nil {
		return err
	}
	if len(f.Free) > maxFree {
		return fmt.Errorf("%d devices; at most %d", len(f.Free), maxFree)
	}
	if err := within("held", int64(f.Held), maxFree); err != nil {
		return err
	}
	seen := make(map[string]bool, len(f.Free))
	for _, g := range f.Free {
		err := CheckUUID(g.UUID)
		if err == nil && g.Of != "" {
			err = CheckUUID(g.Of)
		}
		if err == nil && seen[g.UUID] {
			err = errors.New("duplicate")
		}
		if err != nil {
			return fmt.Errorf("device %q: %w", wellknown.Clip(g.UUID), err)
		}
		seen[g.UUID] = true
	}
	for _, resource := range slices.Sorted(maps.Keys(f.Others)) {
		other := f.Others[resource]
		switch err := other.check(); {
		case len(other.Others) > 0:
			return fmt.Errorf("others: %q has others itself", wellknown.Clip(resource))
		case err != nil:
			return fmt.Errorf("others: %q: %w", wellknown.Clip(resource), err)
		}
	}
	return nil
}

// String returns the annotation's text.
func (f *FreeGPUs) String() string { return encode(f) }

// HCACounts holds the number of different HCAs that one container can have on a Node: the
// annotation heddle.dev/hca-counts. The capacity of a resource with shared HCAs counts places, many
// for each HCA.
type HCACounts struct {
	Version int `json:"version"`
	// HCAs is keyed by resource. A resource that is not among them has no such limit.
	HCAs map[string]int `json:"hcas"`
}

// ParseHCACounts reads an annotation.
func ParseHCACounts(text string) (*HCACounts, error) {
	return parse("HCA counts", text, (*HCACounts).check)
}

func (h *HCACounts) check() error {
	if err := checkVersion(h.Version); err != nil {
		return err
	}
	for name, n := range h.HCAs {
		err := wellknown.CheckResource(name)
		if err = errors.Join(err, within("hcas", int64(n), math.MaxInt32)); err != nil {
			return fmt.Errorf("resource %q: %w", wellknown.Clip(name), err)
		}
	}
	return nil
}

// String returns the annotation's text.
func (h *HCACounts) String() string { return encode(h) }
