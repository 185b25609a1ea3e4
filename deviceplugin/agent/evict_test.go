package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// TestRejectedPodsAreEvicted has two GPUs with 40 % left each, and pods that ask
// for 60 %. The agent evicts the pods that a controller recreates, and no others.
func TestRejectedPodsAreEvicted(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1], rejectedFor: 1s")
	r.Features = devgpu.Features{IMEX: "0", IMEXByPod: true}
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	for _, name := range []string{"a", "b"} {
		if err := r.consumer(name, "60/4", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"channels", "deployed", "bare", "daemon", "static", "started", "senseless"} {
		ask, annotations := "60/4", map[string]string{}
		switch name {
		case "senseless":
			ask = "0/4"
		case "channels":
			annotations[wellknown.IMEXChannels] = "7"
		}
		if err := r.consumer(name, ask, annotations); err == nil {
			t.Fatalf("%s has a GPU", name)
		}
	}
	r.api.EditPod("bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
	r.api.EditPod("daemon", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })
	r.api.EditPod("static", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = uidOf("static") })
	r.api.EditPod("started", func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: 1}}
	})
	until(t, "an eviction", func() bool {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		return len(c.Evicted) > 0
	})
	r.kubelet.Delete("default", "deployed")
	r.api.EditPod("deployed", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, "default/deployed SGPUEvicted: rejected for 1s: ") })
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, evicted := range c.Evicted {
		if evicted != "deployed "+uidOf("deployed") {
			t.Errorf("evicted %q", c.Evicted)
		}
	}
}
