package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// reserved reports whether a gang shows that room is reserved for it. The member that is
// tried does at once.
func reserved(pods map[string]*corev1.Pod, gang string) bool {
	for name, pod := range pods {
		if strings.HasPrefix(name, gang+"-") && strings.Contains(why(pod), "room is reserved from") {
			return true
		}
	}
	return false
}

// A gang of eight nodes that small ones would overtake for ever gets its room: a
// reservation keeps what becomes free. On each of eight nodes a pod ends whenever the
// test lets it, and a younger gang waits to take its place.
func TestALargeGangDoesNotStarve(t *testing.T) {
	for _, tt := range []struct {
		name, args string
		runs       bool
	}{
		{"without reservations", `"gangs": {"reserveAfter": "0s"}`, false},
		{"with reservations", `"gangs": {"reserveAfter": "1ms"}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var nodes []*corev1.Node
			for i := range 8 {
				nodes = append(nodes, node(fmt.Sprintf("n%d", i), 8))
			}
			w := start(t, args(tt.args), nodes...)
			small := func(i int) string { return fmt.Sprintf("small%d", i) }
			add := func(name string, n int) {
				for i := range n {
					w.add(pod(fmt.Sprintf("%s-%d", name, i), 8, gangLabels(name, n)))
				}
			}
			for i := range 4 {
				add(small(i), 2)
			}
			w.until("four small gangs bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "small") == 8 })
			add("large", 8)
			w.until("the large one rejected", func(pods map[string]*corev1.Pod) bool {
				return strings.Contains(why(pods["large-0"]), "rejected by podgroup large") && reserved(pods, "large") == tt.runs
			})
			// One gang ends, and the next of its size waits already.
			for i := range 8 {
				add(small(4+i), 2)
				w.until("rejected", func(pods map[string]*corev1.Pod) bool {
					return bound(pods, "large") == 8 || why(pods[small(4+i)+"-0"]) != "" || bound(pods, small(4+i)+"-") == 2
				})
				for at := range 2 {
					if name := fmt.Sprintf("%s-%d", small(i), at); w.pods()[name] != nil {
						w.delete(name)
					}
				}
				pods := w.until("the room taken, or kept", func(pods map[string]*corev1.Pod) bool {
					return bound(pods, "large") == 8 || bound(pods, small(4+i)+"-") == 2 || tt.runs && i < 3
				})
				if bound(pods, "large") == 8 {
					break
				}
			}
			pods := w.pods()
			if tt.runs {
				pods = w.until("the large gang bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "large") == 8 })
			}
			if got := bound(pods, "large") == 8; got != tt.runs {
				t.Errorf("the large gang runs: %t", got)
			}
		})
	}
}

// Beside a reservation goes what leaves it room, or states that it ends before.
func TestBackfillBesideAReservation(t *testing.T) {
	w := start(t, args(`"gangs": {"reserveAfter": "1ms"}`), node("a", 8), node("b", 8))
	w.add(pod("old-0", 8, nil))
	w.until("a pod bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "old") == 1 })
	for i := range 2 {
		w.add(pod(fmt.Sprintf("large-%d", i), 6, gangLabels("large", 2)))
	}
	w.until("room reserved", func(pods map[string]*corev1.Pod) bool { return reserved(pods, "large") })
	w.add(pod("beside", 2, nil))
	w.until("a pod beside it", func(pods map[string]*corev1.Pod) bool { return bound(pods, "beside") == 1 })
	w.add(pod("long", 2, nil))
	w.until("another kept out", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["long"]), "reserved for a gang")
	})
	short := pod("short", 2, nil)
	short.Annotations = map[string]string{"heddle.dev/expected-duration": "30m"}
	w.add(short)
	w.until("one that ends before", func(pods map[string]*corev1.Pod) bool { return bound(pods, "short") == 1 })
	w.delete("old-0")
	w.delete("short")
	w.until("the gang bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "large") == 2 })
}
