//go:build e2e && linux

package e2e

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/hamirecord"
)

// TestMigrationOfRecordedPods: pods that unmodified HAMi bound leave its node for one that
// heddle-scheduler serves, as they were submitted and as HAMi left them, and get there what
// HAMi gave them. Then that node is given to HAMi, and back. What stays on HAMi's node stays as
// HAMi wrote it. The recorded node has another name here, since the cluster's own has that one.
func TestMigrationOfRecordedPods(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	moved := sharing("moved")
	nodes := []cluster.SimulatedNode{moved}
	for _, version := range hamirecord.Versions() {
		nodes = append(nodes, cluster.SimulatedNode{
			Name: "hami-" + version, Annotations: hamirecord.Load(t, version).Node, Capacity: moved.Capacity,
		})
	}
	f.nodes(t, nodes...)
	f.leader(t)
	for i, version := range hamirecord.Versions() {
		t.Run(version, func(t *testing.T) {
			r, theirs := hamirecord.Load(t, version), nodes[i+1]
			for _, name := range migrating() {
				p := r.Pod(t, name)
				was := f.byRecordedHAMi(t, p, theirs.Name)

				// As submitted, in place of the one on HAMi's node; a scheduler's name in a template
				// is taken out (docs/hami.md).
				submitted := f.recorded(name+"-submitted", p)
				submitted.Annotations = maps.Clone(p.Submitted.Annotations)
				// And as it comes out of a backup.
				restored := f.recorded(name+"-restored", p)
				restored.Annotations, restored.Labels = maps.Clone(was.Annotations), maps.Clone(was.Labels)
				for _, pod := range []*corev1.Pod{submitted, restored} {
					f.create(t, pod)
					f.running(t, time.Minute, pod.Name, 1)
					f.asHAMiGave(t, p, pod.Name, moved.Name)
				}
				now, err := f.client.CoreV1().Pods(f.namespace).Get(t.Context(), was.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(was.Annotations, now.Annotations); diff != "" {
					t.Errorf("%s on HAMi's node (-HAMi's +now):\n%s", name, diff)
				}
			}
			node, err := f.client.CoreV1().Nodes().Get(t.Context(), theirs.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range r.Node {
				if got := node.Annotations[key]; got != want {
					t.Errorf("HAMi's node has %s: %q, want %q", key, got, want)
				}
			}
			f.clear(t)
			f.toHAMiAndBack(t, r, moved)
		})
	}
}

// migrating are the recorded pods that change the node.
func migrating() []string { return []string{"nosched", "sample-pod", "multi"} }

// toHAMiAndBack: a drained node of heddle's, as docs/migration.md leaves it, has nothing of heddle's
// that a scheduler goes by. Under the registration that was recorded, HAMi's pods are bound there,
// and heddle-scheduler places none until the node is heddle's again.
func (f *fleet) toHAMiAndBack(t *testing.T, r *hamirecord.Recording, moved cluster.SimulatedNode) {
	t.Helper()
	f.kubectl(t, append([]string{"annotate", "node", moved.Name}, leaving(t)...)...)
	for key := range f.node(t, moved.Name).Annotations {
		for _, of := range []string{wellknown.Prefix, "hami.io/", "metax-tech.com/"} {
			if strings.HasPrefix(key, of) {
				t.Errorf("the node that heddle has left has %s", key)
			}
		}
	}
	f.annotate(t, moved.Name, r.Node)
	var bound []*corev1.Pod
	for _, name := range migrating() {
		bound = append(bound, f.byRecordedHAMi(t, r.Pod(t, name), moved.Name))
	}
	late := f.recorded("late", r.Pod(t, "multi"))
	f.create(t, late)
	f.rejected(t, late.Name, 1, "no shared GPUs")
	gone := map[string]string{}
	for key := range r.Node {
		gone[key] = ""
	}
	for _, was := range bound {
		now := f.podsOf(t, was.Name)[0]
		if diff := cmp.Diff(was.Annotations, now.Annotations); diff != "" {
			t.Errorf("%s on the node that is HAMi's again (-HAMi's +now):\n%s", was.Name, diff)
		}
		f.kubectl(t, "delete", "pod", "-n", f.namespace, was.Name, "--grace-period=0", "--force")
	}
	// Heddle's once more: the pod that waited gets its shares.
	f.annotate(t, moved.Name, gone)
	f.annotate(t, moved.Name, moved.Annotations)
	f.running(t, time.Minute, late.Name, 1)
	f.asHAMiGave(t, r.Pod(t, "multi"), late.Name, moved.Name)
	f.clear(t)
}

// leaving are the arguments of the documented command that takes away what heddle published.
func leaving(t *testing.T) []string {
	t.Helper()
	for line := range strings.Lines(docs.Pages(t, "../..")["docs/migration.md"]) {
		if keys, ok := strings.CutPrefix(line, "kubectl annotate node NODE "); ok {
			return strings.Fields(keys)
		}
	}
	t.Fatal("docs/migration.md has no such command")
	return nil
}

// annotate merges annotations into a Node; an empty one goes.
func (f *fleet) annotate(t *testing.T, node string, annotations map[string]string) {
	t.Helper()
	args := []string{"annotate", "--overwrite", "node", node}
	for key, value := range annotations {
		if value == "" {
			args = append(args, key+"-")
		} else {
			args = append(args, key+"="+value)
		}
	}
	f.kubectl(t, args...)
}

// recorded is a pod with the containers of a recorded one.
func (f *fleet) recorded(name string, p *hamirecord.Pod) *corev1.Pod {
	pod := f.pod(name, 0, nil)
	base := pod.Spec.Containers[0]
	pod.Spec.Containers = nil
	for i := range p.Submitted.Containers {
		c := *base.DeepCopy()
		c.Name, c.Resources.Limits = p.Submitted.Containers[i].Name, p.Submitted.Containers[i].Resources()
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

// byRecordedHAMi takes a pod through HAMi's writes to a node.
func (f *fleet) byRecordedHAMi(t *testing.T, p *hamirecord.Pod, node string) *corev1.Pod {
	t.Helper()
	pod, admitted := f.recorded(p.Name+"-hami", p), p.Admitted()
	pod.Annotations = admitted.Annotations
	annotations, labels := p.Decision()
	annotations[wellknown.HAMiNode] = node
	if _, given := labels[wellknown.HAMiNode]; given {
		labels[wellknown.HAMiNode] = node
	}
	maps.Copy(annotations, p.Binding())
	return f.byHAMi(t, pod, node, annotations, labels)
}

// asHAMiGave fails the test unless a pod is on a node, of heddle-scheduler, with the amounts that
// HAMi had given.
func (f *fleet) asHAMiGave(t *testing.T, p *hamirecord.Pod, name, node string) {
	t.Helper()
	pod := f.podsOf(t, name)[0]
	if pod.Spec.NodeName != node || pod.Spec.SchedulerName != schedulerName {
		t.Errorf("%s is on %s, of %s", name, pod.Spec.NodeName, pod.Spec.SchedulerName)
	}
	theirs, err := hami.ParsePodShares(p.Written.Annotations[wellknown.HAMiAllocation])
	if err != nil {
		t.Fatal(err)
	}
	ours, err := allocation.ParseAllocation(pod.Annotations[wellknown.SGPUAllocation])
	if err != nil {
		t.Fatalf("%s has %q: %v", name, pod.Annotations[wellknown.SGPUAllocation], err)
	}
	for i := range p.Submitted.Containers {
		container := p.Submitted.Containers[i].Name
		want, got := theirs.Of(i), ours.Containers[container]
		if len(want) != len(got) {
			t.Errorf("%s/%s has %v, and had %v by HAMi", name, container, got, want)
			continue
		}
		for j := range want {
			if got[j].VCore != want[j].VCore || got[j].MemoryMiB != want[j].MemoryMiB {
				t.Errorf("%s/%s has %+v, and had %+v by HAMi", name, container, got[j], want[j])
			}
		}
	}
}
