package master_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gangPod puts a running member of gang tf with 4 GPUs on node n1.
func (c *cluster) gangPod(name string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ai", Name: name, CreationTimestamp: metav1.Unix(1_700_000_000, 0),
		Labels: map[string]string{wellknown.GangName: "tf", wellknown.GangMinAvailable: "2"},
	}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")},
	}}}
	p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
	p.Status.StartTime = new(metav1.Unix(1_700_000_060, 0))
	for _, f := range change {
		f(p)
	}
	c.Put("pods", p)
}

// A pod without GPUs that loses its gang's label leaves the gang, and one that
// has never been in a gang is not a member.
func TestPodLeavesGang(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	withoutGPUs := func(p *corev1.Pod) { p.Spec.Containers = nil }
	plain := func(p *corev1.Pod) { p.Spec.Containers, p.Labels = nil, nil }
	c.gangPod("driver", withoutGPUs)
	c.gangPod("other", plain)
	r := c.replica(t, fabric.ModeSwitchbox)
	members := func(n int) func(*snapshot.Snapshot) bool {
		return func(s *snapshot.Snapshot) bool {
			list := s.GangList()
			return n == 0 && len(list) == 0 || len(list) == 1 && list[0].Members == n
		}
	}
	r.until(t, "one member", members(1))
	c.gangPod("other", withoutGPUs)
	r.until(t, "two members", members(2))
	c.gangPod("other", plain)
	r.until(t, "one member again", members(1))
	c.KindDown("pods", true) // The watch does not see the next change.
	c.gangPod("driver", plain)
	c.KindDown("pods", false)
	r.until(t, "no gang", members(0))
}
