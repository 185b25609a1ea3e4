package gangcache

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func listing(pod *corev1.Pod, groups string) *corev1.Pod {
	pod.Annotations = map[string]string{wellknown.GangGroups: groups}
	return pod
}

// A gang that lists others waits for them. Those that do not list it never notice: they
// neither wait, nor lose what they hold when it goes.
func TestAListAloneHoldsUpTheListerAlone(t *testing.T) {
	c := newCache()
	a, b := podOf("a", in("theirs", "2")), podOf("b", in("theirs", "2"))
	lister := listing(podOf("l", in("lister", "1")), `["theirs"]`)
	admit(c, lister)
	admit(c, a)
	if got := admit(c, b); got != "" {
		t.Errorf("the gang that is listed: %s", got)
	}
	const want = "podgroup lister waits for podgroup default/theirs of its groups: that does not list default/lister"
	if got := admit(c, lister); got != want {
		t.Errorf("the lister: %s", got)
	}
	commit(t, c, a, map[string]string{"a": "n", "b": "n"})
	if wait, rejection := c.Permit(a, "n"); wait == 0 {
		t.Fatalf("one of two is let go: %s", rejection)
	}
	c.DeletePod(lister)
	if len(c.Reservations()["n"]) != 2 || len(c.Effects().Reject) > 0 {
		t.Errorf("with the lister gone: %v", c.Reservations())
	}
	if wait, rejection := c.Permit(b, "n"); wait != 0 || rejection != "" {
		t.Errorf("the last member waits %s: %s", wait, rejection)
	}
}

// Gangs that list each other are one unit, whichever of them is looked at.
func TestAChainOfListsIsOneUnit(t *testing.T) {
	c := newCache()
	for name, groups := range map[string]string{"x": `["y"]`, "y": `["x", "z"]`, "z": `["y"]`, "w": `["x"]`} {
		admit(c, listing(podOf(name, in(name, "1")), groups))
	}
	for _, name := range []string{"x", "y", "z"} {
		unit, missing := c.unit(c.members[types.UID(name)].gang)
		var names []string
		for _, g := range unit {
			names = append(names, g.key.Name)
		}
		if diff := cmp.Diff([]string{"x", "y", "z"}, names); diff != "" || missing != "" {
			t.Errorf("of %s, %q missing (-want +got):\n%s", name, missing, diff)
		}
	}
}
