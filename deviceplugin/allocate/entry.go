package allocate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Entry is one answer of Allocate, as the checkpoint on disk stores it: the CDI name, its resource,
// and once known, the container and the devices behind it. Entries are read across upgrades. They
// are immutable; a change replaces them.
type Entry struct {
	// Kind and Device are the CDI name.
	Kind     cdi.Kind  `json:"kind"`
	Device   string    `json:"device"`
	Resource string    `json:"resource"`
	IDs      []string  `json:"ids"`
	Created  time.Time `json:"created"`
	// Owner is nil until the container starts for the first time.
	Owner *kubelet.Container `json:"owner,omitempty"`
	// Modes are the modes of the GPUs that IDs are partitions of, at the time of Allocate.
	Modes map[string]string `json:"modes,omitempty"`
	// HCAs lists the identities of the HCAs behind IDs, in their order; empty for an ID without an
	// HCA.
	HCAs []string `json:"hcas,omitempty"`
	// Extra are the HCAs beyond the IDs (count all).
	Extra []string `json:"extra,omitempty"`
	// Class is the longest path from one of the HCAs to the nearest GPU.
	Class string `json:"class,omitempty"`

	// Sharing has the shares behind IDs, in their order; without any nothing was decided yet.
	allocation.Sharing
	// Phase is when the container with shares runs, RunAs its user as far as its pod names one,
	// Priority its pod's, Enforced what its limits were first enforced by.
	Phase    quota.Phase      `json:"turn,omitzero"`
	RunAs    *int64           `json:"runAs,omitempty"`
	Priority int32            `json:"priority,omitempty"`
	Enforced enforce.Enforced `json:"enforced,omitzero"`

	// Decision numbers the decision that made it so; 0 for those from disk.
	Decision uint64 `json:"-"`
}

// Name returns the entry's CDI name.
func (e *Entry) Name() cdi.Name { return cdi.Name{Kind: e.Kind, Device: e.Device} }

// Bound lists the HCAs, without repeats.
func (e *Entry) Bound() []string {
	ids := kubelet.SortIDs(slices.Concat(e.HCAs, e.Extra))
	return slices.DeleteFunc(ids, func(id string) bool { return id == "" })
}

// OwnedBy reports whether the entry is known to be a container's.
func (e *Entry) OwnedBy(c kubelet.Container) bool { return e.Owner != nil && e.Owner.Same(c) }

// HasShares reports whether a container has its shares by the entry.
func (e *Entry) HasShares(c kubelet.Container) bool { return len(e.Shares) > 0 && e.OwnedBy(c) }

// ParseEntry reads the entry of a device.
func ParseEntry(content []byte, device string) (*Entry, error) {
	var e Entry
	if err := json.Unmarshal(content, &e); err != nil {
		return nil, err
	}
	switch name, ok := cdi.ParseName(e.Name().String()); {
	case !ok || name.Device != device:
		return nil, fmt.Errorf("the entry is of %q", e.Name())
	case e.Resource == "" || len(e.IDs) == 0:
		return nil, errors.New("resource or device IDs are missing")
	case len(e.HCAs) > len(e.IDs):
		return nil, errors.New("more HCAs than device IDs")
	case len(e.Shares) > 0 && (len(e.Shares) != len(e.IDs) || e.Owner == nil):
		return nil, errors.New("shares without an owner, or not as many as device IDs")
	case !e.Name().MadeFor(e.Resource, e.IDs):
		return nil, errors.New("its name was made for other device IDs")
	}
	if err := wellknown.CheckResource(e.Resource); err != nil {
		return nil, fmt.Errorf("its resource: %w", err)
	}
	if len(e.Shares) > 0 {
		if err := allocation.CheckShares(e.Shares); err != nil {
			return nil, err
		}
	}
	return &e, nil
}
