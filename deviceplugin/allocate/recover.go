package allocate

import (
	"slices"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// Lost are the allocations of shares of which no entry is left. What they stand
// for may be in their CDI specs. If it is not, they are [Node.Unrecorded] until
// their pods are gone.
func (n *Node) Lost() []kubelet.Allocation {
	return slices.DeleteFunc(slices.Clone(n.Snapshot.Allocations), func(a kubelet.Allocation) bool {
		return !n.HasShares(&a) || n.Snapshot.Gone(a.Pod) || !n.lost(&a)
	})
}

// lost reports whether names were given out for an allocation and none of them
// has an entry.
func (n *Node) lost(a *kubelet.Allocation) bool {
	if !a.Checkpointed {
		for _, e := range n.Entries {
			if e.Resource == a.Resource && slices.Equal(e.IDs, a.IDs) {
				return false
			}
		}
		return true
	}
	named := false
	for _, text := range a.CDINames {
		if name, ok := cdi.ParseName(text); ok && name.Kind == cdi.SGPU {
			named = true
			if n.Entries[name.Device] != nil {
				return false
			}
		}
	}
	return named
}

// unrecorded reports whether a container runs, or may run, on GPUs that nothing
// but its device IDs names.
func (n *Node) unrecorded(c kubelet.Container) bool {
	return slices.ContainsFunc(n.Unrecorded, func(a kubelet.Allocation) bool { return a.Same(c) })
}
