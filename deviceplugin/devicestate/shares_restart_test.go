package devicestate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

// TestSharesOutliveRestartsInEveryGap kills the plugin, the kubelet or both
// after every step and after every file that a step writes. Containers keep
// their GPUs, and no other pod gets them.
func TestSharesOutliveRestartsInEveryGap(t *testing.T) {
	for _, restarted := range []string{"plugin", "kubelet", "both"} {
		t.Run(restarted, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			fail := func() {
				if restarted != "plugin" {
					r.kubelet.Restart()
				}
				if restarted != "kubelet" {
					r.restart()
				}
			}
			first := r.consumer("first", "60/40", r.slot(1, 0))
			fail()
			r.start(first)
			fail()
			want := asks{slots: {r.slot(0, 0)}}
			lost, err := r.Allocate(slots, want[slots]) // The answer never arrived.
			if err != nil {
				t.Fatal(err)
			}
			fail()
			r.wants("a", nil, inventorytest.Sharer("main", "50/40"))
			names := r.allocate(pod("a"), "main", want)
			fail()
			r.start(want)
			before := r.mustEnter(names)
			held := r.gpusOf("a")
			for _, cut := range files(t, r, names) {
				if err := os.Remove(cut); err != nil {
					t.Fatal(err)
				}
				fail()
				if err := r.prepareShares(r.consumer("thief", "60/40", r.slot(0, 3))); err == nil {
					t.Fatalf("without %s another pod has what is taken", filepath.Base(cut))
				}
				r.start(want)
				if diff := cmp.Diff(before, r.mustEnter(names)); diff != "" {
					t.Errorf("without %s (-first +now):\n%s", filepath.Base(cut), diff)
				}
			}
			if got := r.gpusOf("a"); !slices.Equal(got, held) {
				t.Errorf("GPUs %v, then %v", held, got)
			}
			if _, err := r.enter(map[string]string{slots: lost}); err == nil {
				t.Error("a name that no container has leads to a GPU")
			}
			r.nothingOvercommitted()
		})
	}
}

// TestExclusiveGPUs: no other pod shares a GPU that a pod has exclusively, and the
// other way round, whatever the kubelet offers.
func TestExclusiveGPUs(t *testing.T) {
	r := shareRig(t)
	native := asks{gpus: r.gpuIDs(2)}
	r.spec("native", corev1.Container{Name: "main"})
	r.allocate(pod("native"), "main", native)
	want := r.consumer("a", "10/1", r.slot(2, 0)) // Of equal GPUs it would get the one that its device ID names.
	r.start(want)
	if got := r.gpusOf("a"); slices.Equal(got, []int{2}) {
		t.Error("it shares a GPU that a pod has exclusively")
	}
	all := r.nothingOvercommitted()
	if all[2].Unhealthy != "held exclusively by default/native" {
		t.Errorf("card 2: %+v", all[2])
	}
	other := asks{gpus: r.gpuIDs(r.gpusOf("a")...)}
	r.spec("late", corev1.Container{Name: "main"})
	r.allocate(pod("late"), "main", other)
	if err := r.Prepare(t.Context(), gpus, other[gpus]); err == nil || !strings.Contains(err.Error(), "is shared by container main of default/a") {
		t.Errorf("error %v", err)
	}
	r.start(native)
}

// TestOvercommitFromOutside: the GPU has less than what is given out already.
func TestOvercommitFromOutside(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "10/40", r.slot(0, 0)))
	r.start(r.consumer("b", "10/30", r.slot(0, 1)))
	r.reconfigure(func(c *config.NodeConfig) { c.SGPU.SlotsPerGPU = 1 })
	for _, want := range []int{1, 0} {
		if drifts := r.driftsNow(); len(drifts) != want || want > 0 && !strings.Contains(drifts[0], "2 consumers on 1 slots") {
			t.Errorf("drifts %v", drifts)
		}
	}
	if err := r.prepareShares(r.consumer("c", "1/1", r.slot(0, 2))); err == nil {
		t.Error("a new pod gets the GPU")
	}
}

// TestNoPodIsGoneWhileAKubeletStarts: a kubelet with which the plugin has not registered
// yet is known by its sockets. What pods and Nodes show must not waver.
func TestNoPodIsGoneWhileAKubeletStarts(t *testing.T) {
	const old, just = 10 * time.Minute, time.Second
	for _, tt := range []struct {
		name          string
		first, second time.Duration // how old the sockets are; 0 is not there
		there         bool
	}{
		{"it runs", old, old, false},
		{"it runs, and made the second a moment before the first", old, old + 2*time.Second, false},
		{"it runs, and was slow to start", old, old - time.Minute, false},
		{"it has just started", just, just, true},
		{"it answers, and knows no pod yet", just, old, true},
		{"it has answered for a minute, and knows no pod yet", time.Minute, old, true},
		{"the same, and the second is removed", time.Minute, 0, true},
		{"it knew its pods a moment ago", time.Minute, just, true},
		{"there is none", 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0")
			r.start(r.consumer("a", "60/40", r.slot(0, 0)))
			r.pass(goneFor + time.Second)
			sockets := []string{r.kubelet.PodResourcesSocket(), r.kubelet.Socket()}
			for i, age := range []time.Duration{tt.first, tt.second} {
				if age == 0 { // A connection that is there goes on without its socket.
					_ = os.Remove(sockets[i])
					continue
				}
				r.touch(sockets[i], r.now.Add(-age))
			}
			r.restart()
			r.kubelet.Delete("default", "a") // As if it were not known yet.
			shared := r.nothingOvercommitted()
			if there := len(r.View().Allocations()) == 1; there != tt.there {
				t.Errorf("bindings %+v", r.View().Allocations())
			}
			if there := shared[0].VCore == 60; there != tt.there {
				t.Errorf("taken: %+v", shared[0])
			}
		})
	}
}

// files counts the files behind a container's names, except the records: specs and
// what is mounted.
func files(t *testing.T, r *rig, names map[string]string) []string {
	t.Helper()
	var list []string
	for _, name := range names {
		n, _ := cdi.ParseName(name)
		list = append(list, filepath.Join(r.options.CDIDir, "heddle-"+string(n.Kind)+"-"+n.Device+".json"),
			filepath.Join(r.options.StateDir, "devices", n.Device+".json"))
	}
	return list
}
