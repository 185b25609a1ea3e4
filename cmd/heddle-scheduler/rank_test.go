package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Whichever member is tried first, those of the lowest ranks get the nodes, and the
// others a reason; no member waits for one that gets none.
func TestTheLastRankTriesFirst(t *testing.T) {
	for _, tt := range []struct {
		name string
		// first come while there is too little room, then the others.
		first []int
	}{
		{"the last", []int{2}}, {"the last two", []int{2, 1}}, {"all", []int{2, 1, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t, args(""), node("a", 1))
			labels := gangLabels("x", 2)
			if len(tt.first) == 1 {
				labels = gangLabels("x", 1)
				w.add(pod("plain", 1, nil))
				w.whole("plain", 1)
			}
			here := map[int]bool{}
			for _, i := range tt.first {
				here[i] = true
				w.add(pod(fmt.Sprintf("x-%d", i), 1, labels))
			}
			w.until("all rejected", func(pods map[string]*corev1.Pod) bool {
				for i := range here {
					if !strings.Contains(why(pods[fmt.Sprintf("x-%d", i)]), "rejected by podgroup x") {
						return false
					}
				}
				return true
			})
			for i := range 3 {
				if !here[i] {
					w.add(pod(fmt.Sprintf("x-%d", i), 1, labels))
				}
			}
			w.add(node("b", 1))
			least := 2
			if len(tt.first) == 1 {
				least = 1
			}
			w.until("as many bound as there is room for", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == least })
			w.add(node("c", 1))
			w.add(node("d", 1))
			w.whole("x", 3)
		})
	}
}
