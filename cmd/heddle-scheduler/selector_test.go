package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

const useGPUUUID = "nvidia.com/use-gpuuuid"

// gpuNode publishes the GPUs that are free; it has as many as it holds besides.
func gpuNode(name string, held int, free ...string) *corev1.Node {
	n := node(name, held+len(free))
	n.Annotations = map[string]string{wellknown.FreeGPUs: freeGPUs(held, free...)}
	return n
}

func freeGPUs(held int, free ...string) string {
	f := allocation.FreeGPUs{Version: allocation.Version, Held: held, Free: []allocation.FreeGPU{}}
	for _, uuid := range free {
		f.Free = append(f.Free, allocation.FreeGPU{UUID: uuid})
	}
	return f.String()
}

func selecting(p *corev1.Pod, use string) *corev1.Pod {
	p.Annotations = map[string]string{useGPUUUID: use}
	return p
}

// republish is what the node's device plugin does when a container has its GPUs.
func (w *cluster) republish(name, text string) {
	w.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := w.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", name)
		if err != nil {
			return err
		}
		changed := n.(*corev1.Node).DeepCopy()
		changed.Annotations[wellknown.FreeGPUs] = text
		changed.ResourceVersion = fmt.Sprint(w.version.Add(1))
		return w.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), changed, "")
	})
	if err != nil {
		w.Fatal(err)
	}
}

// A pod that selects GPUs goes where they are free, and waits while no node publishes
// that they are.
func TestSelectedGPUs(t *testing.T) {
	w := start(t, args(""), gpuNode("a", 0, "GPU-a0", "GPU-a1"), gpuNode("b", 0, "GPU-b0", "GPU-b1"), node("silent", 8))
	w.add(selecting(pod("one", 1, nil), "GPU-b0,GPU-b1"))
	w.until("on the node that has them", func(pods map[string]*corev1.Pod) bool { return pods["one"].Spec.NodeName == "b" })

	// Of the two that are left on b, one is the first pod's, and the node has not
	// published yet which.
	w.add(selecting(pod("two", 1, nil), "GPU-b0"))
	w.until("rejected in words", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["two"]), "2 node(s) have too few free GPUs that the pod accepts") &&
			strings.Contains(why(pods["two"]), "1 node(s) do not publish which GPUs are free")
	})
	w.republish("b", freeGPUs(1, "GPU-b0"))
	w.until("once the node reports the GPU", func(pods map[string]*corev1.Pod) bool { return pods["two"].Spec.NodeName == "b" })

	avoids := pod("three", 2, nil)
	avoids.Annotations = map[string]string{"metax-tech.com/nouse-gpuuuid": "GPU-a1"}
	w.add(avoids)
	w.until("one of a's is not accepted", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["three"]), "too few free GPUs that the pod accepts")
	})
	both := selecting(pod("four", 1, nil), "GPU-a0")
	both.Annotations["metax-tech.com/use-gpuuuid"] = "GPU-a1"
	w.add(both)
	w.until("the condition reports the contradiction", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["four"]), "are both present and differ")
	})
	// Of pods without GPUs, and without the annotation, nothing is asked.
	w.add(selecting(pod("five", 0, nil), "GPU-x"))
	w.add(pod("six", 8, nil))
	w.until("both bound", func(pods map[string]*corev1.Pod) bool {
		return pods["five"].Spec.NodeName != "" && pods["six"].Spec.NodeName == "silent"
	})
}
