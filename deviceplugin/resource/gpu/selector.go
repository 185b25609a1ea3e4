package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Selector is which GPUs a pod accepts, by UUID of the GPU or of a MIG device.
type Selector struct {
	// Use are the only ones it accepts; none means all.
	Use []string
	// Avoid are those that it rejects, whatever Use contains.
	Avoid []string
}

// SelectorOf reads a pod's annotations. It fails if an annotation and its alias
// differ: each of the two would be a surprise to its owner.
func SelectorOf(annotations map[string]string, d wellknown.Domains) (Selector, error) {
	use, avoid, err := quota.UUIDs(annotations, d)
	return Selector{Use: use, Avoid: avoid}, err
}

// None reports whether it accepts all.
func (s Selector) None() bool { return len(s.Use) == 0 && len(s.Avoid) == 0 }

// accepts reports whether a device, of the GPU parent, is acceptable.
func (s Selector) accepts(id, parent string) bool {
	return quota.Accepts(s.Use, s.Avoid, id, parent)
}

// Check returns what is wrong with giving a pod these devices of m: a UUID that
// the node does not have, with those that it has, or a device that the pod does
// not accept. A UUID to avoid may be another node's.
func (s Selector) Check(m *machine.Machine, ids []string) error {
	var have []string
	for i := range m.GPUs {
		have = append(have, m.GPUs[i].UUID)
	}
	var errs []error
	for _, uuid := range s.Use {
		if m.ParentGPU(uuid) == "" && !slices.Contains(have, uuid) {
			errs = append(errs, fmt.Errorf("the node has no GPU %q; it has %s", uuid, strings.Join(have, ", ")))
		}
	}
	for _, id := range ids {
		if !s.accepts(id, cmp.Or(m.ParentGPU(id), id)) {
			errs = append(errs, fmt.Errorf("the pod does not accept GPU %s", id))
		}
	}
	return errors.Join(errs...)
}
