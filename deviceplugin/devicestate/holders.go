package devicestate

import (
	"context"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// admitted is the holder of devices that Allocate returned and the kubelet does not
// report yet.
const admitted = "a pod that is being admitted"

// Held returns the devices of all resources that pods hold: by PodResources or the kubelet's
// checkpoint, by the entries where the kubelet has or may have lost its own, and by answers that
// neither contains yet. A container with shares also holds devices of its GPUs, which may differ
// from its device IDs: such an ID has no number. The kubelet's checkpoint keeps pods that have
// ended until it is written again: those that the API server shows to be gone hold nothing. It
// fails if PodResources or the kubelet's checkpoint cannot be read.
func (s *State) Held(ctx context.Context) ([]inventory.Held, error) {
	seen, err := s.observeBoth(ctx)
	if err != nil {
		return nil, err
	}
	var held []inventory.Held
	for _, a := range slices.Concat(seen.Allocations, seen.Quantities) {
		if a.Pod.Name == "" && !seen.Starting() && s.isGone(a.Pod) {
			continue
		}
		for _, id := range a.IDs {
			held = append(held, inventory.Held{Resource: a.Resource, ID: id, Pod: a.Pod.String()})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shares := s.inventory.Load().Config.Resources.SGPU
	node := s.nodeLocked(seen)
	for c, uuids := range node.ShareClaims() {
		for _, uuid := range uuids {
			held = append(held, inventory.Held{Resource: shares, ID: uuid + inventory.ReplicaSeparator, Pod: c.Pod.String()})
		}
	}
	held = append(held, s.claimedLocked()...)
	live := liveDevices(seen)
	for _, e := range s.entries {
		by := ""
		switch {
		case !live[e.Device] && unclaimed(e, s.options.Now()):
			by = admitted
		case e.Owner != nil && node.Uncertain[*e.Owner] != "":
			by = e.Owner.Pod.String()
		default:
			continue
		}
		for _, id := range e.IDs {
			held = append(held, inventory.Held{Resource: e.Resource, ID: id, Pod: by})
		}
	}
	return held, nil
}

// claimedLocked returns the GPUs of claims. The caller holds mu.
func (s *State) claimedLocked() (held []inventory.Held) {
	for _, c := range s.claims {
		for _, uuid := range c.GPUs() {
			held = append(held, inventory.Held{Resource: claims.Driver, ID: uuid, Pod: c.String()})
		}
	}
	return held
}

// Holders returns the device IDs of a resource that pods hold; see [State.Held].
func (s *State) Holders(ctx context.Context, resource string) (map[string]bool, error) {
	all, err := s.Held(ctx)
	if err != nil {
		return nil, err
	}
	held := make(map[string]bool)
	for _, h := range all {
		if h.Resource == resource && !strings.HasSuffix(h.ID, inventory.ReplicaSeparator) {
			held[h.ID] = true
		}
	}
	return held, nil
}
