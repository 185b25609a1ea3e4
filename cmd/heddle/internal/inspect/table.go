package inspect

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/doctor"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// table renders what a person wants first on an unknown node: what it is, what
// is wrong with it, its GPUs and its HCAs. wide adds UUIDs, drivers and firmware.
func table(m *machine.Machine, problems doctor.Findings, wide bool) string {
	x := affinity.Of(m)
	var b strings.Builder
	b.WriteString(cli.Table(head(m)))
	// What needs action; notes are for doctor.
	if len(problems) > 0 {
		b.WriteString("\nPROBLEMS (heddle doctor shows details)\n")
	}
	for _, f := range problems {
		fmt.Fprintf(&b, "  %s: %s\n", cli.Printable(f.Subject), cli.Printable(f.Message))
	}
	if len(m.GPUs) > 0 {
		b.WriteString("\n" + cli.Table(gpuRows(m, x, wide)))
	}
	if len(m.HCAs) > 0 {
		b.WriteString("\n" + cli.Table(hcaRows(m, x, wide)))
	}
	return b.String()
}

func head(m *machine.Machine) [][]string {
	cpu := m.CPU.Codename
	if m.CPU.ModelName != "" {
		cpu = m.CPU.ModelName + " (" + m.CPU.Codename + ")"
	}
	if m.CPU.Sockets > 0 {
		cpu = fmt.Sprintf("%d x %s", m.CPU.Sockets, cpu)
	}
	nodes := 0
	for i := range m.CPU.NUMA {
		if m.CPU.NUMA[i].CPUs != "" {
			nodes++
		}
	}
	var drivers []string
	for _, d := range m.Drivers() {
		text := d.Version
		if d.Vendor == "" {
			text += ", CUDA " + cmp.Or(d.CUDA, "-")
		}
		if len(m.OtherDrivers) > 0 {
			text = cmp.Or(d.Vendor, wellknown.DefaultDomains().Vendor) + " " + text
		}
		drivers = append(drivers, text)
	}
	return [][]string{
		{"Node", m.Node},
		{"Product", cmp.Or(m.Product, "-")},
		{"Kernel", cmp.Or(m.Kernel, "-")},
		{"CPU", cmp.Or(cpu, "-")},
		{"NUMA nodes", strconv.Itoa(nodes)},
		{"GPU driver", cmp.Or(strings.Join(drivers, "; "), "none")},
		{"GPUs", counted(m.GPUs, func(g *machine.GPU) string { return g.Product })},
		{"HCAs", counted(m.HCAs, func(h *machine.HCA) string { return string(h.Role) })},
	}
}

// counted returns every name with how often it occurs, in the order of the first: "5 x
// NVIDIA H100 PCIe, 3 x NVIDIA L40S".
func counted[T any](all []T, name func(*T) string) string {
	count := map[string]int{}
	var order, parts []string
	for i := range all {
		w := name(&all[i])
		if count[w] == 0 {
			order = append(order, w)
		}
		count[w]++
	}
	for _, w := range order {
		parts = append(parts, fmt.Sprintf("%d x %s", count[w], w))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

func gpuRows(m *machine.Machine, x *affinity.Matrix, wide bool) [][]string {
	links := "NVLINK"
	if v := host.Vendors().Present(m); len(v) > 0 {
		links = strings.ToUpper(v[0].Link)
	}
	rows := [][]string{{"GPU", "PRODUCT", "MIB", "PCI", "NUMA", "HEALTH", links, "NEAREST FABRIC HCAS"}}
	if wide {
		rows[0] = append(rows[0], "UUID")
	}
	for i, d := range x.Devices {
		if !d.GPU {
			continue
		}
		g := &m.GPUs[d.Index]
		row := []string{
			d.Name, g.Product, strconv.FormatInt(g.MemoryMiB, 10), g.PCI, node(d.NUMA), string(g.Health.State),
			nvlinks(m, g), nearest(x, i, affinity.IsFabricHCA),
		}
		if wide {
			row = append(row, g.UUID)
		}
		rows = append(rows, row)
	}
	return rows
}

// nvlinks returns "18 to NVSwitch" or "12 to GPU1".
func nvlinks(m *machine.Machine, g *machine.GPU) string {
	var parts []string
	for _, l := range g.NVLinks {
		peer := l.Peer
		if peer == machine.PeerNVSwitch {
			peer = "NVSwitch"
		}
		for i := range m.GPUs {
			if m.GPUs[i].PCI == l.Peer {
				peer = "GPU" + strconv.Itoa(m.GPUs[i].Index)
			}
		}
		parts = append(parts, fmt.Sprintf("%d to %s", l.Links, peer))
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// nearest returns "mlx5_3 (PIX)": the devices of the best class there is.
func nearest(x *affinity.Matrix, device int, among func(affinity.Device) bool) string {
	near, class := x.Nearest(device, among)
	if len(near) == 0 {
		return "-"
	}
	if class.Kind == affinity.Unknown {
		return "unknown"
	}
	names := make([]string, 0, len(near))
	for _, i := range near {
		names = append(names, x.Devices[i].Name)
	}
	return ranges(names) + " (" + class.String() + ")"
}

func hcaRows(m *machine.Machine, x *affinity.Matrix, wide bool) [][]string {
	rows := [][]string{{"HCA", "ROLE", "PORT", "STATE", "LINK", "NETDEVS", "PCI", "NUMA", "NEAREST GPUS"}}
	if wide {
		rows[0] = append(rows[0], "DRIVER", "FIRMWARE", "NODE GUID")
	}
	rails := affinity.Rails(m)
	for i, d := range x.Devices {
		if d.GPU {
			continue
		}
		h := &m.HCAs[d.Index]
		where := []string{cmp.Or(h.PCI, "-"), node(d.NUMA), nearest(x, i, affinity.IsGPU)}
		if wide {
			where = append(where, cmp.Or(h.Driver, "-"), cmp.Or(h.Firmware, "-"), cmp.Or(h.NodeGUID, "-"))
		}
		first := []string{h.Name, roleAndRail(h.Role, rails[d.Index])}
		if len(h.Ports) == 0 {
			rows = append(rows, append(append(first, "-", "-", "-", "-"), where...))
		}
		for j := range h.Ports {
			p := &h.Ports[j]
			row := append([]string{}, first...)
			row = append(row, strconv.Itoa(p.Number), cmp.Or(p.State, "-"), cmp.Or(link(p), "-"), netdevs(h, p))
			rows = append(rows, append(row, where...))
			first, where = []string{"", ""}, nil
		}
	}
	return rows
}

func netdevs(h *machine.HCA, p *machine.Port) string {
	var names []string
	for _, d := range p.Netdevs {
		names = append(names, d.Name)
	}
	text := cmp.Or(strings.Join(names, " "), "-")
	if len(h.BondSlaves) > 0 {
		text += " over " + strings.Join(h.BondSlaves, " ")
	}
	return text
}

// link returns the link layer and the rate: "InfiniBand 400G (4X NDR)".
func link(p *machine.Port) string {
	return strings.TrimSpace(p.LinkLayer + " " + strings.Replace(p.Rate, " Gb/sec", "G", 1))
}

// ranges joins names with blanks, those that count on from one another as a
// range: GPU0-3 for four neighbors.
func ranges(names []string) string {
	var parts []string
	for i := 0; i < len(names); {
		prefix, first := machine.SplitNumber(names[i])
		j := i + 1
		for first >= 0 && j < len(names) && names[j] == prefix+strconv.Itoa(first+j-i) {
			j++
		}
		if j-i < 3 {
			j = i + 1
			parts = append(parts, names[i])
		} else {
			parts = append(parts, names[i]+"-"+strconv.Itoa(first+j-i-1))
		}
		i = j
	}
	return strings.Join(parts, " ")
}
