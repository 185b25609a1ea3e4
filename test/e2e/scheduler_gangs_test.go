//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	inOneLeaf = "heddle.dev/gang-required-level"
)

// later runs a pod that came after all others: they have had their turn.
func (f *fleet) later(t *testing.T, name string) {
	t.Helper()
	p := f.pod(name, 0, nil)
	p.Spec.SchedulerName = schedulerName
	f.create(t, p)
	f.running(t, name, 1)
}

// uids distinguish pods of one name.
func (f *fleet) uids(t *testing.T, prefix string) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for _, p := range f.podsOf(t, prefix) {
		all[p.Name] = p.UID
	}
	return all
}

// again waits until there are n pods, all of them run, and those named are new.
func (f *fleet) again(t *testing.T, prefix string, n int, before map[string]types.UID, renewed ...string) {
	t.Helper()
	eventually(t, func() string {
		now := f.uids(t, prefix)
		for _, name := range renewed {
			if now[name] == "" || now[name] == before[name] {
				return name + " is not made again"
			}
		}
		return ""
	})
	f.running(t, prefix, n)
}

// priority makes a priority class.
func (f *fleet) priority(t *testing.T, value int) (class string) {
	t.Helper()
	class = fmt.Sprintf("p%d-%s", value, f.namespace)
	f.kubectl(t, "create", "priorityclass", class, fmt.Sprintf("--value=%d", value))
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "priorityclass", class) })
	return class
}

// TestGangReservesNodes: the first gang that has waited gets the nodes that become free, also by a scheduler that was
// restarted, and everybody reads why they wait.
func TestGangReservesNodes(t *testing.T) {
	f := newFleet(t, "gpuScheduler.reserveAfter=1s", "gpuScheduler.map.address=")
	f.gpus(t, "kept-a", 8, nil)
	f.gpus(t, "kept-b", 8, nil)
	ours := func(name string, gpus int) *corev1.Pod {
		p := f.pod(name, gpus, nil)
		p.Spec.SchedulerName = schedulerName
		return p
	}
	f.create(t, ours("runs-0", 8))
	f.create(t, ours("runs-1", 2))
	f.running(t, "runs", 2)
	for i := range 2 {
		f.create(t, f.member("big", i, 2, 8, nil))
	}
	eventually(t, func() string { // One member shows it at once.
		var why string
		for _, p := range f.podsOf(t, "big") {
			if why = whyNot(&p); strings.Contains(why, "2 nodes are reserved for it") {
				return ""
			}
		}
		return "a member shows: " + why
	})
	kept := fmt.Sprintf("reserved for gang %s/big, which has waited 1s", f.namespace)
	f.create(t, ours("small-0", 1))
	f.rejected(t, "small-0", 1, kept)
	if out, _ := f.laptop(t).run(t, "why", "-n", f.namespace, "small-0"); !strings.Contains(out, kept) {
		t.Errorf("heddle why: %s", out)
	}
	f.later(t, "without-gpus")
	f.kill(t)
	f.create(t, ours("small-1", 1))
	f.start(t)
	f.rejected(t, "small", 2, kept)
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "runs-0", "runs-1", "--force", "--grace-period=0")
	f.running(t, "big", 2)
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "big-0", "big-1", "--force", "--grace-period=0")
	f.running(t, "small", 2)
}
