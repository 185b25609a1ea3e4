package allocate

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// The ways to count HCAs, and what can be missing.
func TestWhatAContainerGets(t *testing.T) {
	count := func(c config.Count) func(*config.NodeConfig) {
		return func(n *config.NodeConfig) { n.RDMA.Resources[0].Count = c }
	}
	down := func(names ...string) func(*rig) {
		return func(r *rig) {
			for _, name := range names {
				r.port(name, machine.PortDown)
			}
		}
	}
	for _, tt := range []struct {
		name, machine string
		config        func(*config.NodeConfig)
		before        func(*rig)
		gpus          []int
		ids           []string
		want          string
		err           string
		never         bool
		warnings      []string
		class         string
	}{
		{
			name: "the GPUs' own", machine: "h200-scrambled-nics", gpus: []int{0, 6}, ids: []string{"mlx5_0", "mlx5_1"},
			want: "mlx5_4,mlx5_5", class: "PIX",
		},
		{
			name: "storage on a bond is not an HCA for this", machine: "h800-8ib-bond", gpus: []int{4, 5},
			ids: []string{"mlx5_103", "mlx5_100"}, want: "mlx5_107,mlx5_102", class: "PIX",
		},
		{
			name: "a second one from the same NUMA node is not an error", machine: "h20-4nic", gpus: []int{0, 1},
			ids: []string{"mlx5_0", "mlx5_3"}, want: "mlx5_0,mlx5_1", class: "NODE",
		},
		{name: "HCAs without GPUs are those that the IDs name", machine: "dgx-h100", ids: []string{"mlx5_9", "mlx5_4"}, want: "mlx5_4,mlx5_9"},
		{
			name: "two device IDs of one HCA are two HCAs", machine: "dgx-h100", gpus: []int{0, 1}, ids: []string{"mlx5_9", "mlx5_9/1"},
			want: "mlx5_0,mlx5_3", class: "PIX",
		},
		{
			name: "the near one is down", machine: "dgx-h100", before: down("mlx5_0"), gpus: []int{0},
			ids: []string{"mlx5_9"}, want: "mlx5_3", class: "NODE",
			warnings: []string{"HCANotLocal: rdma/hca_shared_devices_ib: GPU 0 has only NODE (mlx5_3) and would have PIX (mlx5_0)"},
		},
		{
			name: "distinct: fewer are healthy than asked for", machine: "h20-4nic", before: down("mlx5_2"), gpus: []int{0, 1, 2, 3},
			ids: []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"}, want: "mlx5_0,mlx5_1,mlx5_3", class: "SYS",
			warnings: []string{"FewerHCAs: rdma/hca_shared_devices_ib: 4 HCAs requested, 3 available: mlx5_2: port 1 is DOWN"},
		},
		{
			name: "distinct: none is healthy", machine: "h20-4nic", ids: []string{"mlx5_0"},
			before: down("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
			err:    "1 HCAs requested, 0 available: mlx5_0: port 1 is DOWN; mlx5_1",
		},
		{
			name: "strict rejects", machine: "h20-4nic", config: count(config.CountStrict), before: down("mlx5_2"),
			ids: []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"},
			err: "container main gets no HCA: rdma/hca_shared_devices_ib: 4 HCAs requested, 3 available: mlx5_2: port 1 is DOWN (count: strict)",
		},
		{
			name: "strict rejects more than there are", machine: "h20-4nic", config: count(config.CountStrict),
			ids: []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_3/1"}, err: "5 HCAs requested, 4 available", never: true,
		},
		{
			name: "all is all, whatever the number and the ports", machine: "h20-4nic", config: count(config.CountAll),
			before: down("mlx5_2"), gpus: []int{0}, ids: []string{"all::5"},
			want: "mlx5_0,mlx5_1,mlx5_2,mlx5_3", class: "SYS",
		},
		{
			name: "a device without uverbs is excluded", machine: "h20-4nic", ids: []string{"mlx5_1"},
			before: func(r *rig) { r.hca("mlx5_1").CharDevices.UVerbs = nil }, want: "mlx5_0",
		},
		{
			name: "sharers are counted on the HCA that is used", machine: "dgx-h100",
			config: func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 },
			before: func(r *rig) {
				r.allocate("other", "main", gpus, r.uuid(0))
				r.allocate("other", "main", hcas, r.deviceIDs("mlx5_9")...)
				if got := names(r.mustStart("other")); got != "mlx5_0" {
					r.t.Fatalf("the other pod has %s", got)
				}
			},
			ids: []string{"mlx5_0"}, want: "mlx5_3",
		},
		{
			name: "an HCA in the pod's network", machine: "dgx-h100",
			config: func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 },
			before: func(r *rig) {
				// A CNI plugin has moved it before the container starts, and no scan sees its ports.
				r.wants("a", map[string]string{podNetworks: "rail"}, corev1.Container{Name: "main"})
				h := r.hca("mlx5_3")
				r.machine.RDMA.NetnsMode = NetnsExclusive
				*h = machine.HCA{Name: h.Name, PCI: h.PCI, Elsewhere: true, Role: h.Role, CharDevices: h.CharDevices}
			},
			ids: []string{"PCI mlx5_3"}, want: "mlx5_3",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.machine, tt.config)
			if tt.before != nil {
				tt.before(r)
				r.warned()
			}
			ids := r.deviceIDs(tt.ids...)
			if name, exact := strings.CutPrefix(tt.ids[0], "PCI "); exact {
				ids = []string{r.hca(name).PCI}
			}
			r.allocate("a", "main", hcas, ids...)
			if tt.gpus != nil {
				r.allocate("a", "main", gpus, r.uuids(tt.gpus...)...)
			}
			for range 2 { // It starts again: nothing changes, and nothing is reported.
				got, err := r.start("a", "main")
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) || never(err) != tt.never {
						t.Fatalf("error %v, never %t, want %q in it", err, never(err), tt.err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, names(got)); diff != "" {
					t.Errorf("HCAs (-want +got):\n%s", diff)
				}
				class := ""
				for _, g := range got.Grants {
					class += g.Entry.Class
				}
				if diff := cmp.Diff([]string{tt.class}, []string{class}); diff != "" {
					t.Errorf("class (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.warnings, r.warned()); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
				tt.warnings = nil
			}
		})
	}
}

// A container that starts again gets what works, and moves without need to nothing else.
func TestHCAsThatFail(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.allocate("a", "main", gpus, r.uuids(0, 1)...)
	r.allocate("a", "main", hcas, r.deviceIDs("mlx5_0", "mlx5_3")...)
	for _, tt := range []struct{ state, want, warning string }{
		{machine.PortActive, "mlx5_0,mlx5_3", ""},
		{machine.PortDown, "mlx5_0,mlx5_4", "HCANotLocal"},
		{machine.PortActive, "mlx5_0,mlx5_4", ""},
	} {
		r.port("mlx5_3", tt.state)
		got := names(r.mustStart("a"))
		warned := strings.Join(r.warned(), "; ")
		if got != tt.want || !strings.HasPrefix(warned, tt.warning) || tt.warning == "" && warned != "" {
			t.Errorf("mlx5_3 is %s: HCAs %s, want %s; warnings %q", tt.state, got, tt.want, warned)
		}
	}
}

// HCAs of one pod each are those that their IDs name: neither a GPU beside another HCA
// nor a port that is down makes it another one, since CNI plugins act on the same IDs.
func TestHCAsOfOnePod(t *testing.T) {
	r := newRig(t, "dgx-h100", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
	r.allocate("a", "main", gpus, r.uuid(0))
	r.allocate("a", "main", hcas, r.hca("mlx5_9").PCI, r.hca("mlx5_3").PCI)
	for _, tt := range []struct{ state, want, warning string }{
		{machine.PortActive, "mlx5_3,mlx5_9", "HCANotLocal"},
		{machine.PortDown, "mlx5_3", "2 HCAs requested, 1 available: mlx5_9: "},
		{machine.PortActive, "mlx5_3,mlx5_9", ""},
	} {
		r.port("mlx5_9", tt.state)
		got := names(r.mustStart("a"))
		if warned := strings.Join(r.warned(), "; "); got != tt.want || !strings.Contains(warned, tt.warning) {
			t.Errorf("mlx5_9 is %s: HCAs %s, want %s; warnings %q", tt.state, got, tt.want, warned)
		}
	}
	r.allocate("gone", "main", hcas, "0000:99:00.0")
	if _, err := r.start("gone", "main"); err == nil || !strings.Contains(err.Error(), "0000:99:00.0: it no longer exists") {
		t.Errorf("an HCA that is gone: %v", err)
	}
}

// Two resources of one container have different HCAs as long as there are enough.
func TestTwoResourcesInOneContainer(t *testing.T) {
	r := newRig(t, "h20-4nic", func(c *config.NodeConfig) {
		second := c.RDMA.Resources[0]
		second.Name = "rdma/second"
		c.RDMA.Resources = append(c.RDMA.Resources, second)
	})
	r.allocate("a", "main", gpus, r.uuid(2))
	r.allocate("b", "main", hcas, r.deviceIDs("mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1")...)
	for _, resource := range []string{hcas, "rdma/second"} {
		r.allocate("a", "main", resource, r.deviceIDs("mlx5_1")...)
	}
	r.allocate("b", "main", "rdma/second", r.deviceIDs("mlx5_0/1", "mlx5_1/1")...)
	if got := names(r.mustStart("a")); got != "mlx5_0,mlx5_1" {
		t.Errorf("HCAs %s", got)
	}
	if got := len(r.mustStart("b").Devices.HCAs); got != 6 {
		t.Errorf("%d HCAs of two resources, which are more than there are", got)
	}
}

// A pod that cannot use its HCAs in its network is told what is missing.
func TestNetworkWarnings(t *testing.T) {
	const status = "k8s.v1.cni.cncf.io/network-status"
	roce := func(netdevs bool) func(*machine.Machine) {
		return func(m *machine.Machine) {
			for i := range m.HCAs {
				m.HCAs[i].Ports[0].LinkLayer, m.HCAs[i].Ports[0].Netdevs = machine.Ethernet, nil
				if netdevs {
					m.HCAs[i].Ports[0].Netdevs = []machine.Netdev{{Name: fmt.Sprintf("eth%d", i), Type: "ether"}}
				}
			}
		}
	}
	exclusive := func(m *machine.Machine) { m.RDMA.NetnsMode = NetnsExclusive }
	annotated := func(key, value string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{key: value}
		return p
	}
	onHost := &corev1.Pod{}
	onHost.Spec.HostNetwork = true
	for _, tt := range []struct {
		name    string
		machine func(*machine.Machine)
		sharers int
		pod     *corev1.Pod
		want    string // empty without a warning
	}{
		{"InfiniBand", func(*machine.Machine) {}, 64, &corev1.Pod{}, ""},
		{"RoCE", roce(true), 64, &corev1.Pod{}, "mlx5_0, mlx5_3: RoCE needs a network device"},
		{"RoCE of an unknown pod", roce(true), 64, nil, ""},
		{"RoCE on the host's network", roce(true), 64, onHost, ""},
		{"RoCE with a network", roce(true), 64, annotated(podNetworks, "macvlan"), ""},
		{"RoCE with Multus' default networks", roce(true), 64, annotated(status, `[{"name":"a","default":true},{"name":"b"}]`), ""},
		{"RoCE with the cluster's network only", roce(true), 64, annotated(status, `[{"name":"a","default":true}]`), "mlx5_0, mlx5_3: RoCE"},
		{"RoCE that has moved", roce(false), 1, &corev1.Pod{}, ""},
		{"exclusive", exclusive, 1, &corev1.Pod{}, "mlx5_0, mlx5_3: the node's RDMA netns mode is exclusive, and no network of the pod"},
		{"exclusive, with a network", exclusive, 1, annotated(podNetworks, "rail, rail"), ""},
		{"exclusive, on the host's network", exclusive, 64, onHost, ""},
		{"exclusive, and shared", exclusive, 64, annotated(podNetworks, "rail, rail"), "mlx5_0, mlx5_3: the node's RDMA netns mode is exclusive, and an HCA that pods share"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "dgx-h100", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = tt.sharers })
			tt.machine(r.machine)
			ids := r.deviceIDs("mlx5_0", "mlx5_3")
			if tt.sharers == 1 {
				ids = []string{r.hca("mlx5_0").PCI, r.hca("mlx5_3").PCI}
			}
			r.allocate("a", "main", gpus, r.uuids(0, 1)...)
			r.allocate("a", "main", hcas, ids...)
			if r.known["a"] = tt.pod; tt.pod == nil {
				delete(r.known, "a")
			}
			r.mustStart("a")
			r.mustStart("a") // There is no second warning.
			got := r.warned()
			if tt.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || tt.want == "" || !strings.HasPrefix(got[0], "HCANotInPodNetwork: "+tt.want) {
				t.Errorf("warnings %q, want one with %q", got, tt.want)
			}
		})
	}
}
