package devicestate

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// TestHCANotInPodNetwork: one Event on a pod that cannot use its HCAs in its network
// names what is missing, and none comes where nothing is.
func TestHCANotInPodNetwork(t *testing.T) {
	const networks = "k8s.v1.cni.cncf.io/networks"
	roce := func(m *machine.Machine) {
		for i := range m.HCAs {
			m.HCAs[i].Ports[0].LinkLayer = machine.Ethernet
			m.HCAs[i].Ports[0].Netdevs = []machine.Netdev{{Name: fmt.Sprintf("eth%d", i), Type: "ether"}}
		}
	}
	exclusive := func(m *machine.Machine) { m.RDMA.NetnsMode = "exclusive" }
	annotated := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
	}
	onHost := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	for _, tt := range []struct {
		name    string
		machine func(*machine.Machine)
		sharers int
		pod     func(*corev1.Pod)
		want    string // empty without an Event
	}{
		{"InfiniBand", func(*machine.Machine) {}, 64, func(*corev1.Pod) {}, ""},
		{"RoCE", roce, 64, func(*corev1.Pod) {}, "mlx5_0, mlx5_3: RoCE needs a network device"},
		{"RoCE on the host's network", roce, 64, onHost, ""},
		{"RoCE with a network", roce, 64, annotated(networks, "macvlan"), ""},
		{"RoCE with Multus' default networks", roce, 64, annotated("k8s.v1.cni.cncf.io/network-status", `[{"name":"a","default":true},{"name":"b"}]`), ""},
		{"RoCE with the cluster's network only", roce, 64, annotated("k8s.v1.cni.cncf.io/network-status", `[{"name":"a","default":true}]`), "mlx5_0, mlx5_3: RoCE"},
		{"RoCE that has moved", func(m *machine.Machine) {
			roce(m)
			for i := range m.HCAs {
				m.HCAs[i].Ports[0].Netdevs = nil
			}
		}, 1, func(*corev1.Pod) {}, ""},
		{"exclusive", exclusive, 1, func(*corev1.Pod) {}, "mlx5_0, mlx5_3: the node's RDMA netns mode is exclusive, and no network of the pod"},
		{"exclusive, with a network", exclusive, 1, annotated(networks, "rail, rail"), ""},
		{"exclusive, on the host's network", exclusive, 64, onHost, ""},
		{"exclusive, and shared", exclusive, 64, annotated(networks, "rail, rail"), "mlx5_0, mlx5_3: the node's RDMA netns mode is exclusive, and an HCA that pods share"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, "dgx-h100", func(c *config.NodeConfig) {
				oneSharer(c)
				c.RDMA.Resources[0].Sharers = tt.sharers
			})
			r.alter(tt.machine)
			ids := r.deviceIDs("mlx5_0", "mlx5_3")
			if tt.sharers == 1 {
				ids = []string{hcaNamed(r.machine, "mlx5_0").PCI, hcaNamed(r.machine, "mlx5_3").PCI}
			}
			r.spec("a", corev1.Container{Name: "main"})
			tt.pod(r.specs.pods["default/a"])
			want := asks{gpus: r.gpuIDs(0, 1), hcas: ids}
			r.allocate(pod("a"), "main", want)
			r.start(want)
			r.start(want) // It starts again; there is no second Event.
			got := r.specs.takeEvents()
			if tt.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || tt.want == "" || !strings.HasPrefix(got[0], "default/a HCANotInPodNetwork: "+tt.want) {
				t.Errorf("events %q, want one with %q", got, tt.want)
			}
		})
	}
}
