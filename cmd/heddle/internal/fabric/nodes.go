package fabric

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

// node is a node to test.
type node struct {
	name string
	// group is the lowest group of the node.
	group   string
	devices corev1.ResourceList
	ports   []fabrictest.Port
	tests   []v1alpha1.LinkTest
	// versions has the version of perftest and of the first HCA's firmware.
	versions string
}

// nodeTopologies is the path of the NodeTopologies.
const nodeTopologies = "/apis/topology.heddle.dev/v1alpha1/nodetopologies"

// read reads the nodes of the test with their ports.
func (t *test) read(ctx context.Context) error {
	var reports v1alpha1.NodeTopologyList
	if _, err := cluster.ReadPath(ctx, t.client, nodeTopologies, "", &reports); err != nil {
		return err
	}
	slices.Sort(t.o.nodes)
	for _, name := range slices.Compact(t.o.nodes) {
		at := slices.IndexFunc(reports.Items, func(r v1alpha1.NodeTopology) bool { return r.Name == name })
		if at < 0 {
			return fmt.Errorf("node %s: no NodeTopology: does heddle-topo-worker run there?", name)
		}
		object, err := cluster.Node(ctx, t.client, name)
		if err != nil {
			return err
		}
		r := &reports.Items[at]
		n := &node{name: name, group: r.Status.Leaf, tests: r.Status.Tests}
		var shared bool
		n.devices, shared = devices(object)
		n.add(r.Spec.Rails)
		switch {
		case len(n.ports) == 0:
			return fmt.Errorf("node %s: no active port in the fabric", name)
		case shared:
			t.skip(name, "its GPUs are shared")
		default:
			t.nodes = append(t.nodes, n)
		}
	}
	return nil
}

// payload is the part of a link's rate that perftest reaches with messages of 64 KiB.
const payload = 0.97

func (n *node) add(rails []v1alpha1.Rail) {
	for i := range rails {
		r := &rails[i]
		if r.Role != string(machine.RoleFabric) || r.LinkState != v1alpha1.LinkActive {
			continue
		}
		p := fabrictest.Port{
			Node: n.name, HCA: r.HCA, ID: r.ID, Number: r.Port, Netdev: r.Netdev, Rail: r.Rail, Plane: r.Plane,
			Gbps: payload * float64(r.RateGbps),
		}
		if r.Switch != nil {
			p.Leaf = r.Switch.ID
		}
		n.ports = append(n.ports, p)
	}
}

// rails returns the numbers of the rails.
func (n *node) rails() (all []int32) {
	for i := range n.ports {
		all = append(all, n.ports[i].Rail)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// probeScript prints a line for each HCA, and the version of perftest. It fails without perftest.
const probeScript = `for d in /sys/class/infiniband/*; do
echo "hca ${d##*/} $(cat $d/device/current_link_width $d/fw_ver $d/device/current_link_speed 2>/dev/null | tr '\n' ' ')"
done; ib_write_bw --version; test $? != 127`

// pciePayload is the part of a PCIe link's rate that data has, after the headers of packets.
const pciePayload = 0.85

// probe reads the PCIe links and the versions. A node that does not tell has only the links' rates.
func (n *node) probe(ctx context.Context, on *measure.Nodes) error {
	output, err := on.Run(ctx, n.name, []string{"sh", "-c", probeScript})
	n.read(output)
	return err
}

// read reads the output of probeScript.
func (n *node) read(output string) {
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		if len(fields) >= 2 && fields[0] == "Version:" {
			n.versions = strings.Trim("perftest "+fields[1]+", "+n.versions, ", ")
		}
		if len(fields) < 5 || fields[0] != "hca" {
			continue
		}
		var width float64
		_, _ = fmt.Sscan(fields[2], &width)
		limit := pciePayload * width * machine.SpeedGTs(strings.Join(fields[4:], " "))
		for i := range n.ports {
			if p := &n.ports[i]; p.HCA == fields[1] && limit > 0 {
				p.Gbps = min(p.Gbps, limit)
				if n.versions == "" {
					n.versions = "firmware " + fields[3]
				}
			}
		}
	}
}
