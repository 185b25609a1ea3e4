package resource_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/state"
)

const hcasName = "rdma/hca_shared_devices_ib"

// node is a machine and a configuration that tests change.
type hcaNode struct {
	machine   *machine.Machine
	config    config.NodeConfig
	tb        testing.TB
	dir       string // the device state's
	bound     map[string]string
	unhealthy func(*machine.HCA) string
}

func (n *hcaNode) resource() *resource.HCAs {
	var entries []*allocate.Entry
	for id, hca := range n.bound {
		entries = append(entries, state.Entry(cdi.RDMA, hcasName, id, hca))
	}
	return resource.NewHCAs(resource.Options{Name: hcasName, State: state.New(n.tb, n.dir, n.inventory(), entries...)}, n.inventory())
}

func (n *hcaNode) inventory() *inventory.Inventory {
	inv := inventorytest.Configured(n.machine, &n.config)
	if n.unhealthy != nil {
		inv.HCAs = map[string]string{}
		for i := range n.machine.HCAs {
			if reason := n.unhealthy(&n.machine.HCAs[i]); reason != "" {
				inv.HCAs[n.machine.HCAs[i].Name] = reason
			}
		}
	}
	return inv
}

func newHCANode(tb testing.TB, file string) *hcaNode {
	tb.Helper()
	n := &hcaNode{tb: tb, dir: tb.TempDir(), machine: machines.Load(tb, file), config: config.Default()}
	n.config.RDMA.Resources = slices.Clone(n.config.RDMA.Resources)
	n.config.RDMA.Resources[0].Sharers = 2
	return n
}

func (n *hcaNode) hca(rdma string) *machine.HCA {
	return &n.machine.HCAs[slices.IndexFunc(n.machine.HCAs, func(h machine.HCA) bool { return h.Name == rdma })]
}

// lines are device IDs as text, with the HCA's RDMA name in place of its address.
func (n *hcaNode) lines(devices []server.Device) []string {
	var lines []string
	ids := n.machine.HCAIDs()
	for _, d := range devices {
		hca, slot, replicated := strings.Cut(d.ID, inventory.ReplicaSeparator)
		if at := slices.Index(ids, hca); at >= 0 {
			hca = n.machine.HCAs[at].Name
		}
		word := "well"
		if !d.Healthy {
			word = "ill"
		}
		if replicated {
			hca += "/" + slot
		}
		lines = append(lines, fmt.Sprintf("%s %s %v", hca, word, d.NUMA))
	}
	return lines
}

func TestHCAs(t *testing.T) {
	for _, tt := range []struct {
		name, machine string
		change        func(*hcaNode)
		want          []string
		reason        string
	}{
		{
			name: "an HCA has a device ID for each sharer", machine: "h20-4nic",
			want: []string{
				"mlx5_0/0 well [0]", "mlx5_0/1 well [0]", "mlx5_1/0 well [0]", "mlx5_1/1 well [0]",
				"mlx5_2/0 well [1]", "mlx5_2/1 well [1]", "mlx5_3/0 well [1]", "mlx5_3/1 well [1]",
			},
		},
		{
			name: "a port that is down", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Selectors.PCIAddresses = []config.Glob{config.Glob(n.hca("mlx5_1").PCI)}
				n.hca("mlx5_1").Ports[0].State = machine.PortDown
			},
			want: []string{"mlx5_1/0 ill [0]", "mlx5_1/1 ill [0]"}, reason: "mlx5_1: port 1 is DOWN",
		},
		{
			name: "a device ID in use is as well as what it is bound to", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Selectors.IfNames = nil
				n.config.RDMA.Resources[0].Selectors.PCIAddresses = []config.Glob{
					config.Glob(n.hca("mlx5_0").PCI), config.Glob(n.hca("mlx5_1").PCI),
				}
				n.hca("mlx5_1").Ports[0].State = machine.PortDown
				n.bound = map[string]string{
					inventory.ReplicaID(n.hca("mlx5_0").PCI, 1): n.hca("mlx5_1").PCI,
					inventory.ReplicaID(n.hca("mlx5_1").PCI, 0): n.hca("mlx5_0").PCI,
				}
			},
			want:   []string{"mlx5_0/0 well [0]", "mlx5_0/1 ill [0]", "mlx5_1/0 well [0]", "mlx5_1/1 ill [0]"},
			reason: "mlx5_1: port 1 is DOWN",
		},
		{
			name: "health is what the monitor reports", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Sharers = 1
				n.unhealthy = func(h *machine.HCA) string {
					if h.Name == "mlx5_3" {
						return "its rate fell"
					}
					return ""
				}
				n.hca("mlx5_0").CharDevices.UVerbs = nil
			},
			want:   []string{"mlx5_0 ill [0]", "mlx5_1 well [0]", "mlx5_2 well [1]", "mlx5_3 ill [1]"},
			reason: "mlx5_0: it has no uverbs device (module ib_uverbs); mlx5_3: its rate fell",
		},
		{
			name: "all is one device ID for each sharer", machine: "h20-4nic",
			change: func(n *hcaNode) { n.config.RDMA.Resources[0].Count = config.CountAll },
			want:   []string{"all/0 well []", "all/1 well []"},
		},
		{
			name: "all, and none is well", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Count = config.CountAll
				n.unhealthy = func(*machine.HCA) string { return "ill" }
			},
			want:   []string{"all/0 ill []", "all/1 ill []"},
			reason: "mlx5_0: ill; mlx5_1: ill; mlx5_2: ill; mlx5_3: ill",
		},
		{
			name: "none is selected", machine: "soft-rdma-only",
			reason: "rxe0: roles: virtual is not among fabric; siw0: roles: virtual is not among fabric",
		},
		{
			name: "soft devices by their GUID", machine: "soft-rdma-only",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Selectors.Roles = []machine.Role{"virtual"}
				n.config.RDMA.Resources[0].Sharers = 1
			},
			want: []string{"rxe0 well []", "siw0 well []"},
		},
		{
			name: "it is not configured any more", machine: "h20-4nic",
			change: func(n *hcaNode) { n.config.RDMA.Resources = nil }, reason: "it is not configured any more",
		},
		{
			name: "HCAs of one pod each are not offered while a pod has them under a replica's ID", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Sharers = 1
				n.bound = map[string]string{
					inventory.ReplicaID(n.hca("mlx5_0").PCI, 7): n.hca("mlx5_2").PCI,
					n.hca("mlx5_3").PCI:                         n.hca("mlx5_3").PCI,
				}
			},
			want:   []string{"mlx5_0 well [0]", "mlx5_1 well [0]", "mlx5_2 ill [1]", "mlx5_3 well [1]"},
			reason: "mlx5_2: container 0000:13:00.0::7 of default/runs has it under a device ID of the time when it was shared",
		},
		{
			name: "an exclusive HCA is recognized", machine: "h20-4nic",
			change: func(n *hcaNode) {
				n.config.RDMA.Resources[0].Selectors.PCIAddresses = []config.Glob{config.Glob(n.hca("mlx5_1").PCI)}
				n.machine.RDMA = machine.RDMA{NetnsMode: "exclusive"}
			},
			want: []string{"mlx5_1/0 well [0]", "mlx5_1/1 well [0]"},
			reason: "RDMA devices belong to one network namespace (netns mode exclusive): only pods on the host's network can open them; " +
				"missing /dev/infiniband/rdma_cm (module rdma_ucm)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newHCANode(t, tt.machine)
			if tt.change != nil {
				tt.change(n)
			}
			r := n.resource()
			got := r.Devices()
			if !slices.IsSortedFunc(got, func(a, b server.Device) int { return strings.Compare(a.ID, b.ID) }) {
				t.Errorf("not sorted: %v", got)
			}
			lines := n.lines(got)
			slices.Sort(lines)
			if diff := cmp.Diff(tt.want, lines); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.reason, r.Reason()); diff != "" {
				t.Errorf("reason (-want +got):\n%s", diff)
			}
		})
	}
}

// TestEveryMachine: IDs are unique, and zero has a reason.
func TestHCAsOfEveryMachine(t *testing.T) {
	for _, file := range machines.Names(t) {
		t.Run(file, func(t *testing.T) {
			n := newHCANode(t, file)
			devices := n.resource().Devices()
			seen := make(map[string]bool)
			for _, d := range devices {
				if !inventory.IsReplica(d.ID) || seen[d.ID] {
					t.Errorf("device %q, again %v", d.ID, seen[d.ID])
				}
				seen[d.ID] = true
			}
			if len(devices) == 0 && n.resource().Reason() == "" {
				t.Error("there are none, and no reason")
			}
		})
	}
}

func TestPreferHCAs(t *testing.T) {
	const a, b, c = "0000:0a:00.0", "0000:b0:00.0", "10000:01:00.0"
	all := func(hcas ...string) (ids []string) {
		for _, hca := range hcas {
			for slot := range 12 {
				ids = append(ids, inventory.ReplicaID(hca, slot))
			}
		}
		return ids
	}
	for _, tt := range []struct {
		name            string
		available, must []string
		size            int
		want            []string
	}{
		{"different HCAs", all(b, c, a), nil, 2, []string{a + "::0", b + "::0"}},
		{"each once, then again", all(a, b), nil, 3, []string{a + "::0", a + "::1", b + "::0"}},
		{"the one with the most free slots", append(all(a)[3:], all(b)...), nil, 1, []string{b + "::0"}},
		{"slots are numbers", all(a)[2:], nil, 1, []string{a + "::2"}},
		{"beside what must be", all(a, b, c), []string{a + "::7"}, 3, []string{a + "::7", b + "::0", c + "::0"}},
		{"all that must be", all(a), []string{a + "::5", a + "::4"}, 2, []string{a + "::4", a + "::5"}},
		{"everything", all(a)[:2], nil, 2, []string{a + "::0", a + "::1"}},
		{"device IDs for all HCAs", []string{"all::3", "all::1"}, nil, 1, []string{"all::1"}},
		{"nothing", all(a), nil, 0, nil},
		{"HCAs of one pod each, in PCI order", []string{c, b, a}, nil, 2, []string{a, b}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := new(resource.HCAs).Prefer(tt.available, tt.must, tt.size)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("preferred (-want +got):\n%s", diff)
			}
		})
	}
	for _, tt := range []struct {
		available, must []string
		size            int
	}{
		{all(a), nil, 13}, {all(a), all(a), 3}, {all(a)[:2], []string{b + "::0"}, 4},
	} {
		if got, err := new(resource.HCAs).Prefer(tt.available, tt.must, tt.size); err == nil {
			t.Errorf("Prefer(%v, %v, %d) = %v, want an error", tt.available, tt.must, tt.size, got)
		}
	}
}

func TestAllocateHCAs(t *testing.T) {
	n := newHCANode(t, "h20-4nic")
	r := n.resource()
	ids := []string{r.Devices()[0].ID, r.Devices()[2].ID}
	got, err := r.Allocate(t.Context(), ids)
	if err != nil || len(got.GetCdiDevices()) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	if made, ok := cdi.ParseName(got.GetCdiDevices()[0].GetName()); !ok || made.Kind != cdi.RDMA || !made.MadeFor(hcasName, ids) {
		t.Errorf("name %s", made)
	}
	if len(got.GetEnvs())+len(got.GetDevices())+len(got.GetMounts())+len(got.GetAnnotations()) != 0 {
		t.Errorf("more than a name: %v", got)
	}
}
