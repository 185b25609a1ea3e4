//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// tally is what is given out of cards, by UUID, as this test counts it.
type tally map[string]allocation.Taken

func (y tally) add(shares []allocation.Share) {
	for _, s := range shares {
		y[s.UUID] = allocation.Taken{
			VCore: y[s.UUID].VCore + s.VCore, MemoryMiB: y[s.UUID].MemoryMiB + s.MemoryMiB, Slots: y[s.UUID].Slots + 1,
		}
	}
}

// plus adds another tally.
func (y tally) plus(other tally) {
	for uuid, b := range other {
		a := y[uuid]
		y[uuid] = allocation.Taken{VCore: a.VCore + b.VCore, MemoryMiB: a.MemoryMiB + b.MemoryMiB, Slots: a.Slots + b.Slots}
	}
}

// most is the larger of each of two tallies.
func (y tally) most(other tally) tally {
	out := maps.Clone(y)
	for uuid, b := range other {
		a := out[uuid]
		out[uuid] = allocation.Taken{
			VCore: max(a.VCore, b.VCore), MemoryMiB: max(a.MemoryMiB, b.MemoryMiB), Slots: max(a.Slots, b.Slots),
		}
	}
	return out
}

// tallyPod counts a pod once: its containers and sidecars together, or any of
// its init containers alone if that is more. Test pods have their sidecars
// before no larger init container.
func tallyPod(p *corev1.Pod, bound *allocation.Bound) tally {
	together, most := tally{}, tally{}
	for _, c := range p.Spec.Containers {
		together.add(bound.Containers[c.Name].Shares)
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil {
			together.add(bound.Containers[c.Name].Shares)
			continue
		}
		alone := tally{}
		alone.add(bound.Containers[c.Name].Shares)
		most = most.most(alone)
	}
	return together.most(most)
}

// asksShares reports whether a container of a pod does.
func asksShares(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		_, ok := c.Resources.Limits[slotResource]
		return ok
	})
}

// consumers are the pods with shares that are ready, by name.
func (r *rig) consumers(t *testing.T) map[string]*corev1.Pod {
	t.Helper()
	list, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*corev1.Pod{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil && ready(p) && asksShares(p) && p.Spec.NodeName == r.Node() {
			all[p.Name] = p
		}
	}
	return all
}

// count adds up what is given out, by the annotations of pods, and compares it
// with what the plugin reports in /v1/bindings and what the Node's annotation contains
// is taken. It fails the test if a card is over-committed by any of them, or if
// a pod that runs has nothing.
func (r *rig) count(t *testing.T) tally {
	t.Helper()
	var sum tally
	eventually(t, func() string {
		var err error
		sum, err = r.tryCount(t)
		if err != nil {
			return err.Error()
		}
		return ""
	})
	for _, fault := range r.overcommitted(t, sum) {
		t.Error(fault)
	}
	return sum
}

func (r *rig) tryCount(t *testing.T) (tally, error) {
	t.Helper()
	var errs []error
	sum, byPod := tally{}, map[string][]allocation.Share{}
	for name, p := range r.consumers(t) {
		b, err := boundTo(p)
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %s runs: %w", name, err))
			continue
		}
		for container, c := range b.Containers {
			byPod[key(name, container)] = byGPU(c.Shares)
		}
		sum.plus(tallyPod(p, b))
	}
	text := map[string][]allocation.Share{}
	for _, b := range r.account(t).Bindings {
		if k := key(b.Pod, b.Container); len(b.Shares) > 0 && r.live(byPod, b.Pod) {
			text[k] = byGPU(b.Shares)
		}
	}
	if diff := cmp.Diff(byPod, text); diff != "" {
		errs = append(errs, fmt.Errorf("shares by container (-annotations +/v1/bindings):\n%s", diff))
	}
	taken := tally{}
	for _, c := range r.published(t).GPUs {
		if c.Taken != (allocation.Taken{}) {
			taken[c.UUID] = c.Taken
		}
	}
	if diff := cmp.Diff(sum, taken); diff != "" {
		errs = append(errs, fmt.Errorf("taken of cards (-annotations of pods +annotation of the Node):\n%s", diff))
	}
	return sum, errors.Join(errs...)
}

// live reports whether a pod is among those of containers.
func (*rig) live(containers map[string][]allocation.Share, pod string) bool {
	for k := range containers {
		if strings.HasPrefix(k, pod+"/") {
			return true
		}
	}
	return false
}

// published is the Node's annotation.
func (r *rig) published(t *testing.T) *allocation.NodeGPUs {
	t.Helper()
	text, ok := r.node(t).Annotations[apinames.SharedGPUs]
	if !ok {
		return &allocation.NodeGPUs{}
	}
	gpus, err := allocation.ParseNodeGPUs(text)
	if err != nil {
		t.Fatal(err)
	}
	return gpus
}

// overcommitted lists what GPUs have given out that they do not have.
func (r *rig) overcommitted(t *testing.T, sum tally) (faults []string) {
	t.Helper()
	m := r.machine(t)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if got := sum[g.UUID]; got.VCore > 100 || got.MemoryMiB > g.MemoryMiB || got.Slots > 16 {
			faults = append(faults, fmt.Sprintf("card %d has %d MiB and has given out %+v", g.Index, g.MemoryMiB, got))
		}
	}
	return faults
}

// nothingLeft waits until records and CDI specs of shares are gone, and the
// Node shows that its GPUs are free. Those of the last pods stay until the
// kubelet allocates again, because its checkpoint does.
func (r *rig) nothingLeft(t *testing.T) time.Duration {
	t.Helper()
	return eventually(t, func() string {
		var left []string
		for _, rec := range r.records(t) {
			if rec.Resource == slotResource {
				left = append(left, fmt.Sprintf("record %s of %+v", rec.Device, rec.Owner))
			}
		}
		for name := range r.specs(t) {
			if strings.HasPrefix(name, "heddle-sgpu-") {
				left = append(left, "spec "+name)
			}
		}
		for _, c := range r.published(t).GPUs {
			if c.Taken != (allocation.Taken{}) || c.Policy != "" {
				left = append(left, fmt.Sprintf("card %d has %+v taken", c.Index, c.Taken))
			}
		}
		if len(left) > 0 {
			return fmt.Sprintf("%d things are left, such as %s", len(left), left[0])
		}
		return ""
	})
}
