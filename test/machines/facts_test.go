package machines

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// The tests in this file compare the machine files with what owners of such
// machines published. The published files are not part of the repository.
func fixture(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("HEDDLE_FIXTURES")
	if dir == "" {
		t.Skip("HEDDLE_FIXTURES does not name a folder of published topologies")
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCellsOfPublishedTables compares every cell that nvidia-smi printed on
// these nodes, and each GPU's processors and NUMA node. A column NICn is the
// HCA mlx5_n.
func TestCellsOfPublishedTables(t *testing.T) {
	for _, tt := range []struct {
		machine, file string
		columns       []string
		cells         int
	}{
		{"h200-scrambled-nics", "nvsmi-topo-h200-epyc9534-8nic-scrambled.txt", headOf(8, 8), 16 * 16},
		{"b200-one-gpu-off-nvlink", "nvsmi-topo-b200-one-gpu-without-nvlink.partial.txt", headOf(8, 12), 6 * 20},
		{"gb200-tray", "nvsmi-topo-gb200-compute-tray.txt", headOf(4, 0), 4 * 4},
	} {
		t.Run(tt.machine, func(t *testing.T) {
			text := fixture(t, tt.file)
			x := affinity.Of(Load(t, tt.machine))
			at := map[string]int{}
			for i, d := range x.Devices {
				at[strings.Replace(d.Name, "mlx5_", "NIC", 1)] = i
			}
			compared := 0
			for line := range strings.Lines(text) {
				words := strings.Fields(line)
				row, ok := at[append(words, "")[0]]
				if !ok || len(words) <= len(tt.columns) || strings.Contains(line, "Affinity") {
					continue
				}
				for j, column := range tt.columns {
					compared++
					if got, want := x.At(row, at[column]).String(), words[1+j]; got != want {
						t.Errorf("from %s to %s: %s, published %s", words[0], column, got, want)
					}
				}
				d := x.Devices[row]
				if rest := words[1+len(tt.columns):]; len(rest) >= 2 && (d.CPUs != rest[0] || node(d.NUMA) != rest[1]) {
					t.Errorf("%s is near processors %s of node %s, published %v", d.Name, d.CPUs, node(d.NUMA), rest)
				}
			}
			if compared != tt.cells {
				t.Errorf("compared %d cells, want %d", compared, tt.cells)
			}
		})
	}
}

func headOf(gpus, nics int) []string {
	var head []string
	for i := range gpus {
		head = append(head, "GPU"+strconv.Itoa(i))
	}
	for i := range nics {
		head = append(head, "NIC"+strconv.Itoa(i))
	}
	return head
}

func node(numa *int) string {
	if numa == nil {
		return "-"
	}
	return strconv.Itoa(*numa)
}

// xmlSystem is NCCL's topology file.
type xmlSystem struct {
	CPUs []struct {
		NUMA     int      `xml:"numaid,attr"`
		Affinity string   `xml:"affinity,attr"`
		PCI      []xmlPCI `xml:"pci"`
	} `xml:"cpu"`
}

type xmlPCI struct {
	Address string   `xml:"busid,attr"`
	Class   string   `xml:"class,attr"`
	PCI     []xmlPCI `xml:"pci"`
}

// TestFunctionsOfPublishedXML compares which functions are near which
// processors. The switches of these files are the host's: NCCL gets
// them because a guest's kernel does not see them, and so has none.
func TestFunctionsOfPublishedXML(t *testing.T) {
	type function struct {
		Address, Class, CPUs string
		NUMA                 int
	}
	for name, file := range map[string]string{
		"azure-ndv5":      "nccl-topo-azure-ndv5-topo.xml",
		"azure-ndv4":      "nccl-topo-azure-ndv4-topo.xml",
		"a100-pcie-pairs": "nccl-topo-azure-ncv4-topo.xml",
	} {
		t.Run(name, func(t *testing.T) {
			var system xmlSystem
			if err := xml.Unmarshal([]byte(fixture(t, file)), &system); err != nil {
				t.Fatal(err)
			}
			var want, got []function
			for _, c := range system.CPUs {
				var add func(list []xmlPCI)
				add = func(list []xmlPCI) {
					for _, p := range list {
						if p.Class != "0x060400" {
							want = append(want, function{p.Address, p.Class, cpuList(t, c.Affinity), c.NUMA})
						}
						add(p.PCI)
					}
				}
				add(c.PCI)
			}
			for _, f := range Load(t, name).PCI {
				if f.NUMA != nil { // The Ethernet function of these files has no address.
					got = append(got, function{f.Address, f.Class, f.CPUs, *f.NUMA})
				}
			}
			slices.SortFunc(want, func(a, b function) int { return machine.ComparePCI(a.Address, b.Address) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("functions (-published +ours):\n%s", diff)
			}
		})
	}
}

// cpuList turns a mask of 32-bit words, the highest first, into the list of
// its one run of processors.
func cpuList(t *testing.T, mask string) string {
	t.Helper()
	words := strings.Split(mask, ",")
	first, last := -1, -1
	for i, w := range words {
		bits, err := strconv.ParseUint(w, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		for b := range 32 {
			if bits&(1<<b) != 0 {
				cpu := 32*(len(words)-1-i) + b
				last = max(last, cpu)
				if first < 0 || cpu < first {
					first = cpu
				}
			}
		}
	}
	return strconv.Itoa(first) + "-" + strconv.Itoa(last)
}

func TestPortsOfPublishedIbdev2netdev(t *testing.T) {
	line := regexp.MustCompile(`(?m)^(mlx5_\d+)\s+port\s+1\s+==>\s+(\S+)\s+\((Up|Down)\)`)
	want, got := map[string]string{}, map[string]string{}
	for _, f := range line.FindAllStringSubmatch(fixture(t, "ibdev2netdev-h100-8ib-4eth.txt"), -1) {
		want[f[1]] = f[2] + " " + strings.ToLower(f[3])
	}
	for _, h := range Load(t, "ipoib-down").HCAs {
		device := h.Ports[0].Netdevs[0]
		got[h.Name] = device.Name + " " + device.OperState
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 12 {
		t.Errorf("devices (-published +ours):\n%s", diff)
	}
}

func TestGUIDsOfPublishedNVSwitchFunctions(t *testing.T) {
	line := regexp.MustCompile(`device=(mlx5_\d+) guid=0x(\w{4})(\w{4})(\w{4})(\w{4})`)
	want, got := map[string]string{}, map[string]string{}
	for _, f := range line.FindAllStringSubmatch(fixture(t, "fabricmanager-hgx-b200-nvswitch-bridge-mlx5.txt"), -1) {
		want[f[1]] = strings.Join(f[2:], ":")
	}
	for _, h := range Load(t, "nvswitch-functions").HCAs {
		if h.Role == machine.RoleNVSwitch {
			got[h.Name] = h.NodeGUID
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 4 {
		t.Errorf("GUIDs (-published +ours):\n%s", diff)
	}
}

// Decode does not check what a scan guarantees: every device with an address has its function.
func TestFunctionsBehindDevices(t *testing.T) {
	for _, name := range Names(t) {
		m := Load(t, name)
		for i := range m.GPUs {
			if m.Function(m.GPUs[i].PCI) == nil {
				t.Errorf("%s: GPU %s has no function", name, m.GPUs[i].PCI)
			}
		}
		for i := range m.HCAs {
			if h := &m.HCAs[i]; !h.Virtual && m.Function(h.PCI) == nil {
				t.Errorf("%s: HCA %s has no function", name, h.Name)
			}
		}
	}
}
