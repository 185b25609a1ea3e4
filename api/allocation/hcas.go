package allocation

import (
	"errors"
	"fmt"
	"math"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// HCACounts holds the number of different HCAs that one container can have on a Node: the
// annotation heddle.dev/hca-counts. The capacity of a resource with shared HCAs counts places, many
// for each HCA.
type HCACounts struct {
	Version int `json:"version"`
	// HCAs are by resource. A resource that is not among them has no such limit.
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
