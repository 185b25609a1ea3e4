package inspect

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// matrix renders the path classes between all GPUs and HCAs, each device's
// processors and NUMA node, and a legend of the classes that occur. Unlike
// nvidia-smi topo -m it needs no driver, and lists soft RDMA devices too.
func matrix(m *machine.Machine) string {
	x := affinity.Of(m)
	if len(x.Devices) == 0 {
		return "no GPU and no HCA\n"
	}
	rails := affinity.Rails(m)
	head := []string{""}
	for _, d := range x.Devices {
		head = append(head, d.Name)
	}
	rows := [][]string{append(head, "CPUs", "NUMA", "ROLE")}
	classes := map[string]bool{}
	for i, d := range x.Devices {
		row := []string{d.Name}
		for j := range x.Devices {
			c := x.At(i, j)
			classes[name(c)] = true
			row = append(row, c.String())
		}
		role := "gpu"
		if !d.GPU {
			role = roleAndRail(d.Role, rails[d.Index])
		}
		rows = append(rows, append(row, cmp.Or(d.CPUs, "-"), node(d.NUMA), role))
	}
	var b strings.Builder
	b.WriteString(cli.Table(rows))
	b.WriteString("\n")
	var legend [][]string
	for _, l := range affinity.Legend() {
		if classes[l[0]] {
			legend = append(legend, []string{l[0], l[1]})
		}
	}
	b.WriteString(cli.Table(legend))
	return b.String()
}

// name returns a class as the legend spells it.
func name(c affinity.Class) string {
	if c.Kind == affinity.NVLink {
		return cmp.Or(c.Maker, "NV") + "#"
	}
	return c.String()
}

func roleAndRail(role machine.Role, rail int) string {
	if rail < 0 {
		return string(role)
	}
	return string(role) + ", rail " + strconv.Itoa(rail)
}

func node(numa *int) string {
	if numa == nil {
		return "-"
	}
	return strconv.Itoa(*numa)
}
