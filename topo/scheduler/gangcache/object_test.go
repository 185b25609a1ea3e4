package gangcache

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

// setObject makes a PodGroup object with labels or annotations.
func setObject(t *testing.T, c *Cache, name string, least int64, metadata map[string]any) {
	t.Helper()
	metadata["name"], metadata["namespace"] = name, "default"
	spec, err := gang.ReadObject(map[string]any{"metadata": metadata, "spec": map[string]any{"minMember": least}}, c.Domains)
	if err != nil {
		t.Fatal(err)
	}
	c.SetPodGroup(wellknown.PodGroupAPIXK8s, spec.Key, &spec, nil)
}

// TestMatchPolicyOfAnObject: a gang of two ran, and one member is made again beside one that waits, runs or has
// succeeded. Its PodGroup object says whether the other counts.
func TestMatchPolicyOfAnObject(t *testing.T) {
	for policy, counts := range map[gang.Policy]struct{ running, succeeded bool }{
		gang.OnceSatisfied:         {true, true},
		gang.OnlyWaiting:           {false, false},
		gang.WaitingAndRunning:     {true, false},
		gang.WaitingRunningSucceed: {true, true},
	} {
		for _, phase := range []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded} {
			t.Run(string(policy)+" "+string(phase), func(t *testing.T) {
				c := newCache()
				setObject(t, c, "x", 2, map[string]any{"labels": map[string]any{wellknown.GangMatchPolicy: string(policy)}})
				a, b := podOf("a", in("x", "")), podOf("b", in("x", ""))
				startGang(t, c, map[string]string{"a": "n", "b": "m"}, a, b)
				for _, pod := range []*corev1.Pod{a, b} {
					change(c, pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", corev1.PodRunning })
				}
				c.DeletePod(b)
				change(c, a, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "n", phase })
				want := counts.running
				if phase == corev1.PodSucceeded {
					want = counts.succeeded
				}
				reason := admit(c, podOf("again", in("x", "")))
				if waits := strings.Contains(reason, "1 of 2 exist"); waits == want || want && reason != "" {
					t.Errorf("admitted with %q", reason)
				}
			})
		}
	}
}

// TestGroupsOfObjects: PodGroup objects list each other in an annotation, and their gangs run together.
func TestGroupsOfObjects(t *testing.T) {
	c := newCache()
	groups := map[string]any{"annotations": map[string]any{wellknown.GangGroups: `["default/x", "default/y"]`}}
	setObject(t, c, "x", 1, groups)
	setObject(t, c, "y", 2, groups)
	a := podOf("a", in("x", ""))
	if got := admit(c, a); !strings.Contains(got, "podgroup y waits for pods") {
		t.Errorf("x without pods of y: %q", got)
	}
	for _, name := range []string{"b", "c"} {
		admit(c, podOf(name, in("y", "")))
	}
	if got := admit(c, a); got != "" {
		t.Errorf("x with all of y: %q", got)
	}
}
