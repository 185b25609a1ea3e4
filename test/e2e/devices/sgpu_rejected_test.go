//go:build e2e && linux

package devices

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/cluster"
)

// rejectedAfter is sgpu.rejectedFor in this test.
const rejectedAfter = 4 * time.Second

// TestSGPURejectedAndRescheduled: two cards have 40 % left each, so the Node's
// total suggests that a pod of 60 % fits, and no GPU has it. The pod is
// reported, and if a controller makes it again, evicted: then the scheduler finds the
// node that has come meanwhile.
func TestSGPURejectedAndRescheduled(t *testing.T) {
	r := sgpu(t)
	r.configure(t, sharedGPUs+fmt.Sprintf("sgpu: {gpus: [0, 1], rejectedFor: %s}\n", rejectedAfter))
	r.waitShares(t, 2*16, 200, 2*79)
	r.waitAllocatable(t, gpuResource, 6)
	r.create(t, r.pod("first", box{more: share(60, 4)}), r.pod("second", box{more: share(60, 4)}))
	r.waitReady(t, "first")
	r.waitReady(t, "second")
	r.count(t)

	app := r.replicated(t, "trainer", box{more: share(60, 4)})
	rejected := r.waitOnly(t, app, func(p *corev1.Pod) string {
		if p.Spec.NodeName != r.Node() || !strings.Contains(waitingFor(p), "gets no GPU") {
			return "it is not rejected"
		}
		return ""
	})
	r.waitEvent(t, rejected.Name, "SGPURejected", "none of 2 GPUs can give 60 % of compute and 4 GiB. "+
		"GPUs 0-1: 40 % of 100 left; needs 60")
	r.simulate(t, "elsewhere")
	moved := r.waitOnly(t, app, func(p *corev1.Pod) string {
		if p.Spec.NodeName != "elsewhere" || !ready(p) {
			return "it does not run elsewhere"
		}
		return ""
	})
	if moved.UID == rejected.UID {
		t.Error("a pod has moved from node to node")
	}
	r.waitEvent(t, rejected.Name, "SGPUEvicted", "rejected for 4s")
	app.stop(t)

	for _, line := range r.metrics(t, "heddle_evicted_pods_total") {
		if !strings.HasSuffix(line, " 1") {
			t.Errorf("metrics have %s", line)
		}
	}
}

// controlled is such a ReplicaSet.
type controlled struct {
	rig  *rig
	name string
}

func (r *rig) replicated(t *testing.T, name string, b box) controlled {
	t.Helper()
	return r.replicas(t, name, r.pod("", b))
}

// replicas is a ReplicaSet with one pod of a template.
func (r *rig) replicas(t *testing.T, name string, p *corev1.Pod) controlled {
	t.Helper()
	labels := map[string]string{"app": name}
	p.Labels = labels
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec},
	}}
	if _, err := r.client.AppsV1().ReplicaSets(namespace).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := controlled{r, name}
	t.Cleanup(func() { c.stop(t) })
	return c
}

// pods are those of the controller that are not on their way out.
func (c controlled) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list, err := c.rig.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		t.Fatal(err)
	}
	var all []corev1.Pod
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			all = append(all, list.Items[i])
		}
	}
	return all
}

// waitOnly waits until ok returns "" for the only pod of a controller.
func (r *rig) waitOnly(t *testing.T, c controlled, ok func(*corev1.Pod) string) *corev1.Pod {
	t.Helper()
	var only corev1.Pod
	eventually(t, func() string {
		all := c.pods(t)
		if len(all) != 1 {
			return fmt.Sprintf("%s has %d pods", c.name, len(all))
		}
		only = all[0]
		if why := ok(&only); why != "" {
			return fmt.Sprintf("%s: %s; on %s it is %s", only.Name, why, only.Spec.NodeName, inShort(&only))
		}
		return ""
	})
	return &only
}

// stop removes the controller and its pods; once is enough.
func (c controlled) stop(t *testing.T) {
	t.Helper()
	ctx := c.rig.ctx(t)
	_ = c.rig.client.AppsV1().ReplicaSets(namespace).Delete(ctx, c.name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground), GracePeriodSeconds: new(int64(0)),
	})
	list, err := c.rig.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		t.Error(err)
		return
	}
	var all []*corev1.Pod
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	c.rig.remove(t, names(all)...)
}

// simulate adds a node that is another one with cards, and removes it after the
// test.
func (r *rig) simulate(t *testing.T, name string) {
	t.Helper()
	err := r.AddSimulatedNode(t.Context(), cluster.SimulatedNode{Name: name, Capacity: map[string]string{
		slotResource: "16", coreResource: "100", memoryResource: "79",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.client.CoreV1().Nodes().Delete(r.ctx(t), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
