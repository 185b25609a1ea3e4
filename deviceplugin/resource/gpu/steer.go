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

// Steering is which GPUs a pod accepts, by UUID of the GPU or of a MIG device.
type Steering struct {
	// Use are the only ones it accepts; none means all.
	Use []string
	// Avoid are those that it refuses, whatever Use says.
	Avoid []string
}

// SteeringOf reads a pod's annotations. It fails if an annotation and its alias
// differ: one of the two owners would be surprised.
func SteeringOf(annotations map[string]string, d wellknown.Domains) (Steering, error) {
	use, avoid, err := quota.UUIDs(annotations, d)
	return Steering{Use: use, Avoid: avoid}, err
}

// None tells whether nothing is asked.
func (t Steering) None() bool { return len(t.Use) == 0 && len(t.Avoid) == 0 }

// accepts tells whether a device, of the GPU parent, is acceptable.
func (t Steering) accepts(id, parent string) bool {
	return quota.Accepts(t.Use, t.Avoid, id, parent)
}

// Check tells what is wrong with giving a pod these devices of m: a UUID that
// the node does not have, with those that it has, or a device that the pod does
// not accept. A UUID to avoid may be another node's.
func (t Steering) Check(m *machine.Machine, ids []string) error {
	var have []string
	for i := range m.GPUs {
		have = append(have, m.GPUs[i].UUID)
	}
	var errs []error
	for _, uuid := range t.Use {
		if m.ParentGPU(uuid) == "" && !slices.Contains(have, uuid) {
			errs = append(errs, fmt.Errorf("the node has no GPU %q; it has %s", uuid, strings.Join(have, ", ")))
		}
	}
	for _, id := range ids {
		if !t.accepts(id, cmp.Or(m.ParentGPU(id), id)) {
			errs = append(errs, fmt.Errorf("the pod does not accept GPU %s", id))
		}
	}
	return errors.Join(errs...)
}
