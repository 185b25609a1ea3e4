package doctor

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// TestNamesThatTheDevicePluginServes: without a configuration the machine is
// explained by the names that are in use, and HCAs are counted as they are
// served.
func TestNamesThatTheDevicePluginServes(t *testing.T) {
	renamed := []report.Resource{
		{Name: "example.com/gpu", Kind: report.KindGPU, Registered: true, Capacity: 8, Allocatable: 8},
		{Name: "example.com/mig-1g.10gb", Kind: report.KindGPU, Registered: true},
		{Name: "nvidia.com/gpu", Kind: report.KindGPU, Former: true, Registered: true, Capacity: 2, Withdrawn: 2},
		{Name: "rdma/fast", Kind: report.KindHCA, Registered: true, Capacity: 16, Allocatable: 14, Reason: "mlx5_3: no light"},
		{Name: "rdma/slow", Kind: report.KindHCA, Registered: true, Capacity: 2, Allocatable: 2},
	}
	for _, tt := range []struct {
		name   string
		serves []report.Resource
		config string
		want   string
	}{
		{
			"renamed", renamed, "",
			"example.com/gpu  8      -\nrdma/fast        14     mlx5_3: no light\nrdma/slow        2      -\n",
		},
		{"no HCAs", renamed[:1], "", "example.com/gpu  8      -\n"},
		{
			"a configuration is given", renamed, "rdma: {resources: [{name: rdma/mine, sharers: 2}]}",
			"nvidia.com/gpu  8      -\nrdma/mine       16     -\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{
				"--machine", machines + "dgx-h100.json",
				"--device-plugin", answering(t, report.Report{Node: "gpu-1", Resources: tt.serves}),
			}
			if tt.config != "" {
				args = append(args, "--config", directory(t, map[string]string{"version": "v1", "cluster-config": tt.config}))
			}
			out, err := doctor(t, args...)
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			_, table, _ := strings.Cut(out, "WHY NOT MORE\n")
			if table, _, _ = strings.Cut(table, "\n\n"); table+"\n" != tt.want {
				t.Errorf("resources:\n%s\nwant\n%s", table, tt.want)
			}
		})
	}
}

// TestNamesThatTheNodeOffers: a resource with a name of its own is not missed
// by the built-in name, and explained by its own.
func TestNamesThatTheNodeOffers(t *testing.T) {
	plugin := pod("heddle", "dp", func(p *corev1.Pod) { p.Labels = map[string]string{"app.kubernetes.io/name": devicePlugin} })
	const guess = "note  configuration\n  is not given; by what the Node offers its resources are "
	const missed = "resource nvidia.com/gpu\n  is not advertised"
	for _, tt := range []struct {
		name                  string
		capacity, allocatable map[string]string
		want, not             []string
	}{
		{
			"names of its own",
			map[string]string{"example.com/gpu": "8", "rdma/fast": "256", "cpu": "4", "example.com/sgpu": "1"},
			map[string]string{"example.com/gpu": "7", "rdma/fast": "0"},
			[]string{
				guess + "example.com/gpu, rdma/fast\n", "resource example.com/gpu\n  has allocatable 7 of 8: ",
				"resource rdma/fast\n  has capacity 256 and allocatable 0: ",
			},
			[]string{"is not advertised"},
		},
		{
			"the built-in names",
			map[string]string{"nvidia.com/gpu": "8", "rdma/hca_shared_devices_ib": "256", "amd.com/gpu": "1", "rdma/x": "1"},
			map[string]string{"nvidia.com/gpu": "8", "rdma/hca_shared_devices_ib": "256"},
			nil,
			[]string{guess, "problem  resource"},
		},
		{
			"two that may be it", map[string]string{"a.com/gpu": "1", "b.com/gpu": "1"}, nil, []string{missed}, []string{guess},
		},
		{"nothing", nil, nil, []string{missed}, []string{guess}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := h20Node()
			list := func(of map[string]string) corev1.ResourceList {
				quantities := corev1.ResourceList{}
				for name, n := range of {
					quantities[corev1.ResourceName(name)] = resource.MustParse(n)
				}
				return quantities
			}
			node.Status.Capacity, node.Status.Allocatable = list(tt.capacity), list(tt.allocatable)
			out, err := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, node, []corev1.Pod{plugin}))
			if err != nil && !errors.Is(err, cli.ErrFindings) {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			for _, not := range tt.not {
				if strings.Contains(out, not) {
					t.Errorf("%q in\n%s", not, out)
				}
			}
		})
	}
}
