package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"volcano.sh/volcano/pkg/scheduler/api"
	"volcano.sh/volcano/pkg/scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// The arguments are as YAML gives them: 1 is an int, 0.5 a float64.
func TestScores(t *testing.T) {
	var nodes []*api.NodeInfo
	for name, table := range map[string]string{
		"broken":  `{"2":`,
		"far":     `{"2":{"score":0,"loss":0}}`,
		"linked":  `{"2":{"score":400,"loss":0}}`,
		"needed":  `{"2":{"score":400,"loss":400}}`,
		"nothing": ``,
	} {
		nodes = append(nodes, &api.NodeInfo{Name: name, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{wellknown.GPUTopology: table},
		}}})
	}
	for _, tt := range []struct {
		name      string
		arguments framework.Arguments
		gpus      float64
		want      map[string]float64
	}{
		{
			"documented",
			framework.Arguments{"weight": 1, "loss.weight": 0.5},
			2,
			map[string]float64{"broken": 0, "far": 0, "linked": 100, "needed": 50, "nothing": 0},
		},
		{"defaults", nil, 2, map[string]float64{"broken": 0, "far": 0, "linked": 100, "needed": 0, "nothing": 0}},
		{
			"more weight",
			framework.Arguments{"weight": 2.0, "loss.weight": 3},
			2,
			map[string]float64{"broken": -100, "far": 0, "linked": 200, "needed": -100, "nothing": -100},
		},
		{"a request that no node has in its table", nil, 3, map[string]float64{}},
		{"no GPUs", nil, 0, map[string]float64{}},
		{"GPUs of another vendor", framework.Arguments{"vendor": "metax-tech.com"}, 2, map[string]float64{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, ok := newGPUAware(tt.arguments).(*gpuAware)
			if !ok {
				t.Fatal("no plugin")
			}
			for _, gpu := range []corev1.ResourceName{"nvidia.com/gpu", "amd.com/gpu", "metax-tech.com/gpu"} {
				if tt.arguments["vendor"] != nil && gpu != "nvidia.com/gpu" {
					continue
				}
				amount := api.EmptyResource()
				amount.SetScalar(gpu, tt.gpus*1000)
				got, err := p.scores(&api.TaskInfo{Resreq: amount}, nodes)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s: scores (-want +got):\n%s", gpu, diff)
				}
			}
		})
	}
}
