package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// of renames the GPUs in lists to another maker's.
func of(maker string, lists ...corev1.ResourceList) {
	for _, list := range lists {
		if n, ok := list[gpu]; ok {
			delete(list, gpu)
			list[corev1.ResourceName(maker+"/gpu")] = n
		}
	}
}

func nodeOf(maker string, n *corev1.Node) *corev1.Node {
	of(maker, n.Status.Capacity, n.Status.Allocatable)
	return n
}

func podOf(maker string, p *corev1.Pod) *corev1.Pod {
	of(maker, p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests)
	return p
}

// TestGPUsOfEveryMaker: with domains.vendor auto those of each maker are GPUs: gangs
// leave larger nodes whole, nodes in use fill first, and pods select GPUs by UUID
// under their maker's annotation.
func TestGPUsOfEveryMaker(t *testing.T) {
	const amd, metax = "amd.com", wellknown.MetaX
	named := gpuNode("named", 0, "0000:18:00.0", "0000:3a:00.0")
	w := start(t, args(`"domains": {"vendor": "auto"}`),
		nodeOf(amd, node("a", 3)), nodeOf(amd, node("b", 2)), nodeOf(amd, node("c", 2)), node("nvidia", 2),
		nodeOf(metax, node("used", 8)), nodeOf(metax, node("empty", 8)), nodeOf(metax, named))
	for i := range 2 {
		w.add(podOf(amd, pod(fmt.Sprintf("g-%d", i), 2, gangLabels("g", 2))))
	}
	pods := w.whole("g", 2)
	if at := pods["g-0"].Spec.NodeName + pods["g-1"].Spec.NodeName; at != "bc" && at != "cb" {
		t.Errorf("the gang is on %q", at)
	}
	first := podOf(metax, pod("first", 4, nil))
	first.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "used"}
	w.add(first)
	w.until("one pod is there", func(pods map[string]*corev1.Pod) bool { return pods["first"].Spec.NodeName == "used" })
	w.add(podOf(metax, pod("next", 4, nil)))
	w.until("the node in use is filled", func(pods map[string]*corev1.Pod) bool { return pods["next"].Spec.NodeName == "used" })
	selects := podOf(metax, pod("selects", 1, nil))
	selects.Annotations = map[string]string{metax + "/use-gpuuuid": "0000:3a:00.0"}
	w.add(selects)
	w.until("where that GPU is", func(pods map[string]*corev1.Pod) bool { return pods["selects"].Spec.NodeName == "named" })
	// On a node of two makers each has free GPUs of its own.
	both := gpuNode("both", 0, "GPU-a")
	free := allocation.FreeGPUs{
		Version: allocation.Version, Free: []allocation.FreeGPU{{UUID: "GPU-a"}}, Resource: gpu,
		Others: map[string]allocation.FreeGPUs{amd + "/gpu": {Version: allocation.Version, Free: []allocation.FreeGPU{{UUID: "GPU-b"}}}},
	}
	both.Annotations[wellknown.FreeGPUs] = free.String()
	for _, list := range []corev1.ResourceList{both.Status.Capacity, both.Status.Allocatable} {
		list[amd+"/gpu"] = resource.MustParse("1")
	}
	w.add(both)
	other := podOf(amd, pod("other", 1, nil))
	other.Annotations = map[string]string{amd + "/use-gpuuuid": "GPU-b"}
	w.add(other)
	w.until("the other maker's", func(pods map[string]*corev1.Pod) bool { return pods["other"].Spec.NodeName == "both" })
	w.add(pod("nvidia-0", 2, nil))
	w.until("of NVIDIA", func(pods map[string]*corev1.Pod) bool { return pods["nvidia-0"].Spec.NodeName == "nvidia" })
}
