//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// reported waits until an Event of a pod has a reason and these words.
func (f *fleet) reported(t *testing.T, within time.Duration, prefix, reason, words string) {
	t.Helper()
	eventually(t, within, func() string {
		all := f.kubectl(t, "-n", f.namespace, "get", "events", "--field-selector=reason="+reason, "-o",
			`jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`)
		for line := range strings.Lines(all) {
			if strings.HasPrefix(line, prefix) && strings.Contains(line, words) {
				return ""
			}
		}
		return fmt.Sprintf("no Event %s of %s contains %q:\n%s", reason, prefix, words, all)
	})
}

// TestGangBadInput is what people write and cannot mean: it is refused with an
// Event that names the key, and others are not disturbed.
func TestGangBadInput(t *testing.T) {
	f := newFleet(t)
	f.gpus(t, "bad-a", 8, nil)
	const (
		policy = "pod-group.scheduling.sigs.k8s.io/match-policy"
		size   = gpu + "-group-size"
	)
	begun := time.Now()
	gang := func(name string, n, gpus int, change func(i int, p *corev1.Pod)) {
		for i := range n {
			p := f.member(name, i, n, gpus, map[string]string{})
			change(i, p)
			f.create(t, p)
		}
	}
	// Those that only time distinguishes from slow operators come first.
	gang("few", 2, 1, func(_ int, p *corev1.Pod) { p.Labels[gangLeast] = "5" })
	gang("alone", 2, 1, func(_ int, p *corev1.Pod) { p.Annotations[gangGroups] = `["alone", "never"]` })
	gang("nameless", 1, 1, func(_ int, p *corev1.Pod) { delete(p.Labels, gangLeast) })
	for _, tt := range []struct {
		name   string
		change func(i int, p *corev1.Pod)
		words  string
	}{
		{"slices", func(_ int, p *corev1.Pod) { p.Annotations[size] = "7" }, "slices of 7 GPUs are no multiple of the 2 GPUs of a pod"},
		{"sizes", func(i int, p *corev1.Pod) { p.Annotations[size] = fmt.Sprint(8 << i) }, "gpu-group-size: its members have 8 and 16"},
		{"policy", func(_ int, p *corev1.Pod) { p.Labels[policy] = "sometimes" }, policy + `: unsupported value "sometimes": supported are once-satisfied`},
		{"number", func(_ int, p *corev1.Pod) { p.Labels[gangLeast] = "five" }, gangLeast + `: "five" is not 1 to 100000`},
		{"zero", func(_ int, p *corev1.Pod) { p.Labels[gangLeast] = "0" }, gangLeast + `: "0" is not 1 to 100000`},
		{"groups", func(_ int, p *corev1.Pod) { p.Annotations[gangGroups] = "never" }, gangGroups + `: invalid list "never"`},
		{"orphan", func(_ int, p *corev1.Pod) { delete(p.Labels, gangName) }, gangLeast + " without the name of a gang"},
		{"twofold", func(_ int, p *corev1.Pod) { p.Labels["pod-group.scheduling.sigs.k8s.io"] = "other" }, `is "other"`},
	} {
		gang(tt.name, 2, 2, tt.change)
		t.Log(f.rejected(t, tt.name+"-", 2, tt.words))
		f.reported(t, 10*time.Second, tt.name+"-", "FailedScheduling", tt.words)
	}
	// Ignored, and reported: a gang of Koordinator's that would run by half.
	gang("remark", 2, 1, func(_ int, p *corev1.Pod) {
		p.Labels = nil
		for key, value := range map[string]string{"name": "remark", "min-available": "2", "total-number": "3", "mode": "NonStrict"} {
			p.Annotations["gang.scheduling.koordinator.sh/"+key] = value
		}
	})
	f.reported(t, 10*time.Second, "remark-", "GangInvalidAnnotation", "annotation gang.scheduling.koordinator.sh/mode is ignored; "+
		"annotation gang.scheduling.koordinator.sh/total-number is ignored")
	f.running(t, 30*time.Second, "remark-", 2)
	f.later(t, "plain")

	for prefix, words := range map[string]string{
		"few":      "podgroup few waits for pods: 2 of 5 exist",
		"alone":    fmt.Sprintf("podgroup alone waits for podgroup %s/never of its groups: there is none", f.namespace),
		"nameless": "podgroup nameless has no min-available, and there is no PodGroup object with minMember",
	} {
		f.reported(t, time.Minute, prefix+"-", "GangIncomplete", words)
	}
	t.Logf("after %.0f s every pod had its reason", time.Since(begun).Seconds())
	for pod := range f.bound(t, "") {
		if !strings.HasPrefix(pod, "remark-") && pod != "plain" {
			t.Errorf("%s has a node", pod)
		}
	}
}
