//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

// lend gives the real node GPUs to count, which no device plugin hands out.
func (f *fleet) lend(t *testing.T, gpus int) {
	t.Helper()
	patch := func(value string) []string {
		return []string{
			"patch", "node", f.Node(), "--subresource=status", "--type=merge", "-p",
			fmt.Sprintf(`{"status": {"capacity": {%[1]q: %[2]s}, "allocatable": {%[1]q: %[2]s}}}`, gpu, value),
		}
	}
	f.kubectl(t, patch(fmt.Sprintf("%q", fmt.Sprint(gpus)))...)
	t.Cleanup(func() { f.kubectlAfter(t, patch("null")...) })
}

// containers waits until the pods of the real node run there as containers, and
// returns how many those are.
func (f *fleet) containers(t *testing.T, prefix string) (n int) {
	t.Helper()
	eventually(t, func() string {
		tasks, err := f.NodeExec(t.Context(), "ctr", "tasks", "list")
		if err != nil {
			return err.Error()
		}
		n = 0
		for _, p := range f.podsOf(t, prefix) {
			if p.Spec.NodeName != f.Node() {
				continue
			}
			if len(p.Status.ContainerStatuses) != 1 {
				return p.Name + " has no container"
			}
			id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
			running := false
			for line := range strings.Lines(tasks) {
				running = running || id != "" && strings.HasPrefix(line, id) && strings.Contains(line, "RUNNING")
			}
			if !running {
				return fmt.Sprintf("%s has container %q, and containerd runs\n%s", p.Name, id, tasks)
			}
			n++
		}
		return ""
	})
	return n
}

// TestGangOnTheRealNode is a gang of which a part runs in containers, under a
// real kubelet: nothing of it starts before all of it has room, and a member
// that is deleted there is made again and runs there.
func TestGangOnTheRealNode(t *testing.T) {
	f := newFleet(t)
	f.gpus(t, "unreal", 2, nil)
	f.lend(t, 2)
	const gang, n = "mixed", 4
	template := f.member(gang, 0, n, 1, nil)
	template.Spec.Containers[0].Image = cluster.PauseImage
	f.makeSet(t, gang, n, template)
	t.Log(f.rejected(t, gang, n, "rejected by podgroup mixed: 2 of 4 fit"))
	if got := f.containers(t, gang); got != 0 {
		t.Errorf("%d containers of a gang that has no room", got)
	}
	f.kubectl(t, "uncordon", f.Node())
	nodes := f.running(t, gang, n)
	if got := f.containers(t, gang); nodes[f.Node()] != 2 || nodes["unreal"] != 2 || got != 2 {
		t.Errorf("the gang is on %v, in %d containers", nodes, got)
	}
	before := f.uids(t, gang)
	for pod, node := range f.bound(t, gang) {
		if node == f.Node() {
			f.kubectl(t, "-n", f.namespace, "delete", "pod", pod)
			f.again(t, gang, n, before, pod)
			if on := f.bound(t, gang)[pod]; on != f.Node() {
				t.Errorf("%s is made again on %s", pod, on)
			}
			break
		}
	}
	if got := f.containers(t, gang); got != 2 {
		t.Errorf("%d containers", got)
	}
}
