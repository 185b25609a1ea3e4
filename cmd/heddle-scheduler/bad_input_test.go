package main

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A gang with a min-available larger than it is waits for pods that do not exist,
// and holds nothing while it does.
func TestMinAvailableLargerThanTheGang(t *testing.T) {
	w := start(t, args(""), node("a", 4))
	for i := range 3 {
		w.add(pod(fmt.Sprintf("x-%d", i), 1, gangLabels("x", 30)))
	}
	w.add(pod("plain-0", 4, nil))
	pods := w.until("the plain pod gets the room", func(pods map[string]*corev1.Pod) bool { return bound(pods, "plain") == 1 })
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d of 30 have a node", n)
	}
	w.delete("plain-0")
	for i := range 3 {
		w.change(fmt.Sprintf("x-%d", i), func(p *corev1.Pod) { p.Labels = gangLabels("x", 3) })
	}
	w.until("bound once mended", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 3 })
}

func TestMinAvailableThatIsNoNumber(t *testing.T) {
	for _, text := range []string{"five", "0", "-1", "1e2", "3.0", "0x3"} {
		t.Run(text, func(t *testing.T) {
			w := start(t, args(""), node("a", 4))
			labels := gangLabels("x", 2)
			labels["pod-group.scheduling.sigs.k8s.io/min-available"] = text
			w.add(pod("x-0", 1, labels))
			w.add(pod("x-1", 1, gangLabels("x", 2)))
			want := fmt.Sprintf("label pod-group.scheduling.sigs.k8s.io/min-available: %q is not 1 to 100000", text)
			pods := w.until("the condition of each pod names the key", func(pods map[string]*corev1.Pod) bool {
				return strings.Contains(why(pods["x-0"]), want) && strings.Contains(why(pods["x-1"]), want)
			})
			if n := bound(pods, "x"); n > 0 {
				t.Errorf("%d have a node", n)
			}
		})
	}
}

func TestContradictorySpellingsOnOnePod(t *testing.T) {
	const koordinator = "gang.scheduling.koordinator.sh/"
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		want        string
	}{
		{"two sizes", map[string]string{koordinator + "min-available": "3"}, `is "2" and annotation gang.scheduling.koordinator.sh/min-available is "3"`},
		{"two names", map[string]string{koordinator + "name": "y"}, `is "x" and annotation gang.scheduling.koordinator.sh/name is "y"`},
		{"two slices", map[string]string{"nvidia.com/gpu-group-size": "2", "metax-tech.com/gpu-group-size": "4"}, "metax-tech.com/gpu-group-size"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := start(t, args(""), node("a", 4))
			p := pod("x-0", 1, gangLabels("x", 2))
			p.Annotations = maps.Clone(tt.annotations)
			w.add(p)
			w.add(pod("x-1", 1, gangLabels("x", 2)))
			pods := w.until("the condition names the keys", func(pods map[string]*corev1.Pod) bool { return strings.Contains(why(pods["x-0"]), tt.want) })
			if n := bound(pods, "x"); n > 0 {
				t.Errorf("%d have a node", n)
			}
			w.change("x-0", func(p *corev1.Pod) { p.Annotations = nil })
			w.until("bound once mended", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 2 })
		})
	}
}
