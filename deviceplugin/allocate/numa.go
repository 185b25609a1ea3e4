package allocate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// processorNodes returns the sorted NUMA nodes of a container's exclusive processors; none without
// such processors, or if their nodes are unknown. The kubelet's topology manager aligned them with
// the device IDs, which do not name the GPU of a share.
func (n *Node) processorNodes(c kubelet.Container) []int {
	if n.Snapshot == nil {
		return nil
	}
	var nodes []int
	numa := n.Inventory.Machine.CPU.NUMA
	for _, cpu := range n.Snapshot.CPUs(c) {
		for i := range numa {
			if numa[i].Has(cpu) && !slices.Contains(nodes, numa[i].ID) {
				nodes = append(nodes, numa[i].ID)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

// far reports whether a device is known to be of a NUMA node outside of nodes;
// nothing is far from a container without exclusive processors.
func far(nodes []int, device int) bool {
	return len(nodes) > 0 && device >= 0 && !slices.Contains(nodes, device)
}

func numbers(nodes []int) string {
	texts := make([]string, len(nodes))
	for i, node := range nodes {
		texts[i] = strconv.Itoa(node)
	}
	return strings.Join(texts, ", ")
}

// numaWarnings are about shares that were decided and are far from the processors
// that their container has to itself.
func (n *Node) numaWarnings(decided []*Entry) []Warning {
	var all []Warning
	for _, e := range decided {
		nodes := n.processorNodes(*e.Owner)
		for _, share := range e.Shares {
			at := slices.IndexFunc(n.Inventory.Shared, func(g quota.GPU) bool { return g.UUID == share.UUID })
			if at < 0 || !far(nodes, n.Inventory.Shared[at].NUMA) {
				continue
			}
			g := &n.Inventory.Shared[at]
			all = append(all, Warning{wellknown.EventSharesOnOtherNUMANode, fmt.Sprintf(
				"container %s has a share of GPU %d, which is of NUMA node %d, and the container's processors are of %s",
				e.Owner.Name, g.Index, g.NUMA, numbers(nodes))})
		}
	}
	return all
}
