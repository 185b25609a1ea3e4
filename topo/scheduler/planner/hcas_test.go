package planner_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

const hca = corev1.ResourceName(wellknown.RDMAResource)

// asking is a pod whose containers ask for so many HCAs each, the first before the
// others run.
func asking(hcas ...int64) *corev1.Pod {
	p := pod("p", "1", "1", 0)
	p.Spec.Containers = nil
	for i, n := range hcas {
		c := corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			hca: *resource.NewQuantity(n, resource.DecimalSI), corev1.ResourceCPU: resource.MustParse("4"),
		}}}
		if i == 0 {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		} else {
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

// What one container asks for is compared with what the node has, and not the sum.
func TestLacksHCAs(t *testing.T) {
	const four = `{"version":1,"hcas":{"rdma/hca_shared_devices_ib":4}}`
	for _, tt := range []struct {
		name       string
		annotation string
		pod        *corev1.Pod
		want       corev1.ResourceName
	}{
		{"as many as there are", four, asking(1, 4, 4), ""},
		{"more than there are", four, asking(1, 4, 5), hca},
		{"of an init container", four, asking(5, 1), hca},
		{"another resource's", `{"version":1,"hcas":{"rdma/other":4}}`, asking(1, 8), ""},
		{"none published", "", asking(1, 8), ""},
		{"of another version", `{"version":9,"hcas":{"rdma/hca_shared_devices_ib":4}}`, asking(1, 8), ""},
		{"none there", `{"version":1,"hcas":{"rdma/hca_shared_devices_ib":0}}`, asking(1, 2), hca},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &corev1.Node{}
			n.Name, n.Annotations = "n", map[string]string{wellknown.HCACounts: tt.annotation}
			if got := planner.LacksHCAs(n, planner.HCAs(tt.pod)); got != tt.want {
				t.Errorf("lacks %q, want %q", got, tt.want)
			}
			if got := planner.ClassOf(tt.pod, nil).Obstacle(n); (got == "") != (tt.want == "") {
				t.Errorf("obstacle: %q", got)
			}
		})
	}
	if diff := cmp.Diff(planner.Amounts{}, planner.HCAs(asking(1, 8), hca)); diff != "" {
		t.Errorf("a resource that is ignored:\n%s", diff)
	}
	if planner.ClassOf(asking(1, 2, 4), nil).Key == planner.ClassOf(asking(1, 3, 3), nil).Key {
		t.Error("pods with other containers are one class")
	}
}
