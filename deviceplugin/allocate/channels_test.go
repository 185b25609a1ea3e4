package allocate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// A container with GPUs gets the channels that its pod asks for, if it may, and else waits.
func TestChannels(t *testing.T) {
	const gpus, shares, hcas = "nvidia.com/gpu", "nvidia.com/sgpu", "rdma/hca_shared_devices_ib"
	const prefix = "container main gets no IMEX channel: annotation heddle.dev/imex-channels is "
	ask := func(text string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{wellknown.IMEXChannels: text}
		return p
	}
	long := strings.Repeat("x", 1<<18)
	for _, tt := range []struct {
		name, allowed, resource string
		pod                     *corev1.Pod
		want, err               string
	}{
		{"all containers get all", "", gpus, ask("0"), "", ""},
		{"and of a pod that is not known", "", gpus, nil, "", ""},
		{"not asked for", "0", gpus, &corev1.Pod{}, "", ""},
		{"asked for", "0", gpus, ask("0"), "channel0", ""},
		{"of shares", "0", shares, ask("0"), "channel0", ""},
		{"without GPUs", "0", hcas, ask("0"), "", ""},
		{"without GPUs, of a pod that is not known", "0", hcas, nil, "", ""},
		{"several", "0,3,17", gpus, ask("17,0"), "channel17 channel0", ""},
		{"of all", "all", gpus, ask("17"), "channel17", ""},
		{"another one", "0,3", gpus, ask("0,17"), "", prefix + `"0,17": channel 17 is not allowed; allowed on this node: 0,3`},
		{"the node has none", "0,3", gpus, ask("3"), "", prefix + `"3": the node has no channel 3; allowed on this node: 0,3`},
		{"the node has none of all", "all", gpus, ask("3"), "", prefix + `"3": the node has no channel 3; allowed on this node: all that it has, 0, 17`},
		{"all", "all", gpus, ask("all"), "", prefix + `"all": invalid IMEX channel "all": want numbers such as 0; allowed on this node: all that it has, 0, 17`},
		{"nothing", "0", gpus, ask(""), "", prefix + `"": invalid IMEX channel "": want numbers such as 0; allowed on this node: 0`},
		{
			"a hostile value", "0", gpus, ask(long), "",
			prefix + `"` + long[:125] + `...": invalid IMEX channel "` + long[:29] + `...": want numbers such as 0; allowed on this node: 0`,
		},
		{
			"a pod that is not known", "0", gpus, nil, "", "default/a is not known yet, and so neither is whether its annotation " +
				"heddle.dev/imex-channels asks for IMEX channels: the container waits for the API server",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			inv := inventorytest.Configured(&machine.Machine{}, &c)
			if tt.allowed != "" {
				inv.Channels = &inventory.Channels{Allowed: tt.allowed, Nodes: map[int]*specs.DeviceNode{
					0: {Path: "channel0"}, 17: {Path: "channel17"},
				}}
			}
			n := &Node{Inventory: inv}
			main := kubelet.Container{Pod: kubelet.Pod{Namespace: "default", Name: "a"}, Name: "main"}
			nodes, err := n.channels(main, []kubelet.Allocation{{Container: main, Resource: tt.resource}}, tt.pod)
			var got []string
			for _, node := range nodes {
				got = append(got, node.Path)
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if strings.Join(got, " ") != tt.want || text != tt.err {
				t.Errorf("%q, error %q\nwant %q, error %q", got, text, tt.want, tt.err)
			}
		})
	}
}
