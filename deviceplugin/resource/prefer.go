package resource

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/preferred"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Prefer implements [server.Resource].
func (r *GPUs) Prefer(available, must []string, size int) ([]string, error) {
	return r.PreferFor(quota.Selector{}, available, must, size)
}

// PreferFor chooses whole GPUs as [preferred.Scores.Choose] has it, MIG devices
// from the GPUs with the fewest left. What the selector accepts comes first; if
// that does not suffice, the others fill up, and the check at the start of the
// container reports it.
func (r *GPUs) PreferFor(selector quota.Selector, available, must []string, size int) ([]string, error) {
	s := r.now.Load()
	free, first := s.known(available), s.known(must)
	if len(first) < len(must) || len(must) > size || size > len(available) || size < 1 {
		return nil, fmt.Errorf("choose %d devices of %d with %d: not possible", size, len(available), len(must))
	}
	free = r.withoutUsed(free, first, size)
	wanted := slices.DeleteFunc(slices.Clone(free), func(d device) bool { return !selector.Accepts(d.id, s.uuids[d.gpu]) })
	wanted = merge(wanted, first)
	if len(wanted) >= size {
		return s.choose(wanted, first, size)
	}
	return s.choose(merge(free, wanted), wanted, size)
}

// withoutUsed leaves out what containers have although the kubelet offers it,
// if enough is left. If not, the start of the container is rejected until they are gone.
func (r *GPUs) withoutUsed(free, must []device, size int) []device {
	used := r.State.Forgotten(r.Name)
	if len(used) == 0 {
		return free
	}
	rest := slices.DeleteFunc(slices.Clone(free), func(d device) bool { return used[d.id] != "" })
	if rest = merge(rest, must); len(rest) < size {
		return free
	}
	return rest
}

// known returns the devices of IDs, in the machine's order; IDs that are not in the
// snapshot any more are left out.
func (s *Snapshot) known(ids []string) []device {
	var devices []device
	for _, id := range ids {
		if d, ok := s.devices[id]; ok {
			devices = append(devices, d)
		}
	}
	return merge(devices, nil)
}

// merge returns both lists without doubles, in the machine's order.
func merge(a, b []device) []device {
	out := slices.Concat(a, b)
	slices.SortFunc(out, func(a, b device) int { return cmp.Or(cmp.Compare(a.gpu, b.gpu), strings.Compare(a.id, b.id)) })
	return slices.CompactFunc(out, func(a, b device) bool { return a.id == b.id })
}

// choose picks size devices of free that include must.
func (s *Snapshot) choose(free, must []device, size int) ([]string, error) {
	if len(free) < size {
		return nil, fmt.Errorf("choose %d devices: %d are left", size, len(free))
	}
	whole := !slices.ContainsFunc(free, func(d device) bool { return d.instance || d.gpu >= preferred.MaxGPUs })
	if !whole {
		return pack(free, must, size), nil
	}
	ids := make([]string, 0, size)
	for chosen := s.scores.Choose(maskOf(free), maskOf(must), size); chosen != 0; chosen &= chosen - 1 {
		ids = append(ids, s.uuids[bits.TrailingZeros64(chosen)])
	}
	return ids, nil
}

func maskOf(devices []device) uint64 {
	var mask uint64
	for i := range devices {
		mask |= 1 << devices[i].gpu
	}
	return mask
}

// pack takes must and then devices of the GPUs with the fewest free ones, so that other GPUs stay
// whole and can be cut again. MIG devices have no peers.
func pack(free, must []device, size int) []string {
	left := map[int]int{}
	for i := range free {
		left[free[i].gpu]++
	}
	ids := make([]string, 0, size)
	for i := range must {
		ids = append(ids, must[i].id)
	}
	rest := slices.SortedStableFunc(slices.Values(free), func(a, b device) int {
		return cmp.Compare(left[a.gpu], left[b.gpu])
	})
	for i := range rest {
		if len(ids) < size && !slices.Contains(ids, rest[i].id) {
			ids = append(ids, rest[i].id)
		}
	}
	return ids
}

// CheckSelector returns an error if a pod must not get these devices of m: a UUID that
// the node does not have, with those that it has, or a device that the pod does
// not accept. A UUID to avoid may be another node's.
func CheckSelector(s quota.Selector, m *machine.Machine, ids []string) error {
	var have []string
	for i := range m.GPUs {
		have = append(have, m.GPUs[i].UUID)
	}
	var errs []error
	lacking := s.Unknown(func(uuid string) bool { return m.ParentGPU(uuid) != "" || slices.Contains(have, uuid) })
	if len(lacking) > 0 {
		errs = append(errs, fmt.Errorf("the node has no GPU %s; it has %s",
			strings.Join(lacking, ", "), strings.Join(have, ", ")))
	}
	for _, id := range ids {
		if !s.Accepts(id, cmp.Or(m.ParentGPU(id), id)) {
			errs = append(errs, fmt.Errorf("the pod does not accept GPU %s", id))
		}
	}
	return errors.Join(errs...)
}
