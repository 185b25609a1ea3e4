package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// hcaNode has HCAs that 64 containers share each, and publishes their number unless
// it is silent.
func hcaNode(name string, hcas int, silent bool) *corev1.Node {
	n := node(name, 8)
	n.Status.Allocatable[wellknown.RDMAResource] = *resource.NewQuantity(int64(hcas)*64, resource.DecimalSI)
	if !silent {
		counts := allocation.HCACounts{Version: allocation.Version, HCAs: map[string]int{wellknown.RDMAResource: hcas}}
		n.Annotations = map[string]string{wellknown.HCACounts: counts.String()}
	}
	return n
}

// withHCAs makes a pod's containers ask for so many HCAs each.
func withHCAs(p *corev1.Pod, hcas ...int) *corev1.Pod {
	for i, n := range hcas {
		if i > 0 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i)})
		}
		c := &p.Spec.Containers[i]
		for _, list := range []*corev1.ResourceList{&c.Resources.Limits, &c.Resources.Requests} {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[wellknown.RDMAResource] = *resource.NewQuantity(int64(n), resource.DecimalSI)
		}
	}
	return p
}

// A container that asks for more HCAs than a node has does not come to it, though the
// node's capacity, which counts places on HCAs, has room for sixty-four such.
func TestHCAsThatANodeHas(t *testing.T) {
	w := start(t, args(""), hcaNode("four", 4, false), hcaNode("also-four", 4, false))
	w.add(withHCAs(pod("eight", 1, nil), 8))
	w.until("rejected in words", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["eight"]),
			"2 node(s) have fewer HCAs of rdma/hca_shared_devices_ib than the 8 that one container asks for")
	})
	// Containers of one pod share HCAs, so two of them can have four each.
	w.add(withHCAs(pod("twice-four", 1, nil), 4, 4))
	w.until("bound", func(pods map[string]*corev1.Pod) bool { return pods["twice-four"].Spec.NodeName != "" })
	for i := range 2 {
		w.add(withHCAs(pod(fmt.Sprintf("g-%d", i), 1, gangLabels("g", 2)), 8))
	}
	w.until("a gang is not planned there", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["g-0"]), "rejected by podgroup g: none of 2 fits")
	})
	n := hcaNode("eight-hcas", 8, false)
	n.ResourceVersion = fmt.Sprint(w.version.Add(1))
	if err := w.client.Tracker().Add(n); err != nil {
		t.Fatal(err)
	}
	w.until("a node with eight has come", func(pods map[string]*corev1.Pod) bool {
		return pods["eight"].Spec.NodeName == "eight-hcas" && bound(pods, "g") == 2
	})
}
