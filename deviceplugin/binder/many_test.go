package binder

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// crowd allocates for n pods: the first eight have a GPU each, all have two
// tickets, of neighbors' HCAs.
func (r *rig) crowd(n int) (wants []asks, names []map[string]string) {
	r.tb.Helper()
	fabric := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}
	for i := range n {
		name := fmt.Sprintf("pod-%d", i)
		r.spec(name, corev1.Container{Name: "main"})
		want := asks{hcas: r.tickets(
			fmt.Sprintf("%s/%d", fabric[i%8], i/8), fmt.Sprintf("%s/%d", fabric[(i+3)%8], 32+i/8))}
		if i < 8 {
			want[gpus] = r.cards(i)
		}
		wants = append(wants, want)
		names = append(names, r.allocate(pod(name), "main", want))
	}
	return wants, names
}

func TestHundredAtOnce(t *testing.T) {
	r := newRig(t, "dgx-h100")
	const n = 100
	wants, names := r.crowd(n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			for resource, ids := range wants[i] {
				if err := r.Bind(t.Context(), resource, ids); err != nil {
					t.Error(err)
				}
				// One resource is enough for the binding, both are for the specs.
			}
		})
	}
	all.Wait()
	uses := make(map[string]int)
	for i := range n {
		got := r.mustEnter(names[i])
		if got.Devices.Pod != fmt.Sprintf("pod-%d", i) || len(got.given()) != 2 || len(got.Nodes) != 3 {
			t.Errorf("pod-%d sees %+v", i, got)
		}
		if i < 8 && (len(got.Devices.GPUs) != 1 || got.Devices.GPUs[0].Index != i || got.Devices.GPUs[0].Class != "PIX") {
			t.Errorf("pod-%d has GPUs %+v", i, got.Devices.GPUs)
		}
		for _, hca := range got.given() {
			uses[hca]++
		}
	}
	for hca, used := range uses {
		if used > 64 {
			t.Errorf("%s is shared by %d", hca, used)
		}
	}
	calls, rejected := r.kubelet.PodResourcesCalls()
	if calls-rejected > n/2 {
		t.Errorf("%d calls of PodResources for %d starts", calls-rejected, n+8)
	}
	t.Logf("%d starts: %d calls of PodResources, %d rejected", n+8, calls, rejected)
}

// TestSharersHoldAtOnce starts as many containers at once as there are
// tickets, with all tickets on one side and all GPUs on the other.
func TestSharersHoldAtOnce(t *testing.T) {
	r := newRig(t, "h20-4nic", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 2 })
	var wants []asks
	var names []map[string]string
	for i := range 8 {
		want := asks{gpus: r.cards(i), hcas: r.tickets(fmt.Sprintf("mlx5_%d/%d", 3-i/2, i%2))}
		wants, names = append(wants, want), append(names, r.allocate(pod(fmt.Sprint(i)), "main", want))
	}
	var all sync.WaitGroup
	for i := range wants {
		all.Go(func() {
			if err := r.Bind(t.Context(), hcas, wants[i][hcas]); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range names {
		got := r.mustEnter(map[string]string{hcas: names[i][hcas]})
		if want := fmt.Sprintf("mlx5_%d", i/2); !slices.Equal(got.given(), []string{want}) {
			t.Errorf("GPU %d has %v, want %s", i, got.given(), want)
		}
	}
}

// TestRestartInEveryGap kills the plugin, the kubelet or both after every step
// and after every file that a step writes. Nobody ever sees another's devices,
// and what a container has once seen it sees again.
func TestRestartInEveryGap(t *testing.T) {
	for _, who := range []string{"plugin", "kubelet", "both"} {
		t.Run(who, func(t *testing.T) {
			r := newRig(t, "dgx-h100", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
			fail := func() {
				if who != "plugin" {
					r.kubelet.Restart()
				}
				if who != "kubelet" {
					r.restart()
				}
			}
			other := asks{gpus: r.cards(0), hcas: r.tickets("mlx5_11")}
			otherNames := r.allocate(pod("other"), "main", other)
			r.start(other)
			before := r.mustEnter(otherNames)

			want := asks{gpus: r.cards(1, 2), hcas: r.tickets("mlx5_9", "mlx5_10")}
			lost, err := r.Name(hcas, want[hcas]) // The answer never arrived.
			if err != nil {
				t.Fatal(err)
			}
			fail()
			names := r.allocate(pod("a"), "main", want)
			fail()
			if err := r.Bind(t.Context(), gpus, want[gpus]); err != nil {
				t.Fatal(err)
			}
			fail()
			if err := r.Bind(t.Context(), hcas, want[hcas]); err != nil {
				t.Fatal(err)
			}
			first := r.mustEnter(names)
			if !slices.Equal(first.given(), []string{"mlx5_3", "mlx5_4"}) {
				t.Fatalf("bound to %v", first.given())
			}
			// A third container wants the same HCAs if they look free.
			third := asks{gpus: r.cards(3), hcas: r.tickets("mlx5_0")}
			thirdNames := r.allocate(pod("third"), "main", third)
			for _, cut := range files(t, r, names) {
				if err := os.Remove(cut); err != nil {
					t.Fatal(err)
				}
				fail()
				r.start(third)
				r.start(want)
				if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
					t.Errorf("without %s (-first +now):\n%s", filepath.Base(cut), diff)
				}
				if got := r.mustEnter(thirdNames); !slices.Equal(got.given(), []string{"mlx5_5"}) {
					t.Errorf("without %s the third container has %v", filepath.Base(cut), got.given())
				}
			}
			if diff := cmp.Diff(before, r.mustEnter(otherNames)); diff != "" {
				t.Errorf("the other container (-before +after):\n%s", diff)
			}
			if _, err := r.enter(map[string]string{hcas: lost}); err == nil {
				t.Error("a name that nobody has leads to devices")
			}
		})
	}
}

// files are those behind a container's names, but for the records: specs and
// what is mounted.
func files(t *testing.T, r *rig, names map[string]string) []string {
	t.Helper()
	var list []string
	for _, name := range names {
		kind, device, _ := parseName(name)
		list = append(list, filepath.Join(r.options.CDIDir, "heddle-"+kind+"-"+device+".json"),
			filepath.Join(r.options.StateDir, deviceDir, device+".json"))
	}
	return list
}

// TestRecordsLost: the names are in the checkpoint, so containers start again;
// which HCAs they had is decided anew.
func TestRecordsLost(t *testing.T) {
	for _, how := range []string{"gone", "corrupt"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, "dgx-h100")
			want := asks{gpus: r.cards(1), hcas: r.tickets("mlx5_9")}
			names := r.allocate(pod("a"), "main", want)
			r.start(want)
			first := r.mustEnter(names)
			records, err := filepath.Glob(filepath.Join(r.options.StateDir, recordDir, "*.json"))
			if err != nil || len(records) != 2 {
				t.Fatalf("%v: %v", records, err)
			}
			for _, path := range records {
				if how == "gone" {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, []byte(`{"kind":"gpu","devi`), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.restart()
			if how == "corrupt" && (len(r.Problems()) != 1 || !strings.Contains(r.Problems()[0].Reason, "set aside")) {
				t.Errorf("problems: %v", r.Problems())
			}
			if err := r.Collect(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
				t.Errorf("a running container's spec changed:\n%s", diff)
			}
			r.start(want)
			if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
				t.Errorf("at the next start (-first +next):\n%s", diff)
			}
		})
	}
}

// left counts the files that we have on a node.
func (r *rig) left() int {
	n := 0
	for _, dir := range []string{r.options.CDIDir, filepath.Join(r.options.StateDir, recordDir), filepath.Join(r.options.StateDir, deviceDir)} {
		entries, _ := os.ReadDir(dir)
		n += len(entries)
	}
	return n
}

func (r *rig) collect() {
	r.tb.Helper()
	if err := r.Collect(r.tb.Context()); err != nil {
		r.tb.Fatal(err)
	}
}

func TestCollect(t *testing.T) {
	r := newRig(t, "dgx-h100")
	gone := asks{gpus: r.cards(1), hcas: r.tickets("mlx5_3")}
	goneNames := r.allocate(pod("gone"), "main", gone)
	r.start(gone)
	stays := asks{gpus: r.cards(2), hcas: r.tickets("mlx5_4")}
	staysNames := r.allocate(pod("stays"), "main", stays)
	r.start(stays)
	if _, err := r.Name(hcas, r.tickets("mlx5_5")); err != nil { // Nobody will come for it.
		t.Fatal(err)
	}
	for _, f := range []string{"nvidia.json", "heddle-nvidia.json", "heddle-gpu-x.json"} {
		if err := os.WriteFile(filepath.Join(r.options.CDIDir, f), []byte(`{}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut := filepath.Join(r.options.CDIDir, ".heddle-1.tmp")
	if err := os.WriteFile(cut, []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	const all = 2*6 + 1 + 3 + 1
	if n := r.left(); n != all {
		t.Fatalf("%d files, want %d", n, all)
	}
	r.collect()
	r.kubelet.Delete("default", "gone")
	r.collect()
	r.pass(goneFor)
	r.collect()
	if n := r.left(); n != all {
		t.Errorf("the checkpoint still names the pod, and %d files of %d are left", n, all)
	}
	if len(r.Bindings()) != 2 {
		t.Errorf("bindings: %+v", r.Bindings())
	}
	// The next allocation rewrites the checkpoint, and may take the same devices.
	next := asks{hcas: r.tickets("mlx5_3")}
	nextNames := r.allocate(pod("next"), "main", next)
	r.start(next)
	r.pass(unclaimedFor + time.Second)
	r.collect()
	r.pass(goneFor)
	r.collect()
	if n := r.left(); n != 6+3+3 {
		t.Errorf("%d files are left, want those of two pods and three that are not ours", n)
	}
	if _, err := os.Stat(cut); err == nil {
		t.Error("a temporary file is left")
	}
	for _, name := range []string{"nvidia.json", "heddle-nvidia.json", "heddle-gpu-x.json"} {
		if err := os.Remove(filepath.Join(r.options.CDIDir, name)); err != nil {
			t.Error(err)
		}
	}
	if got := r.mustEnter(staysNames); got.Devices.Pod != "stays" {
		t.Errorf("%+v", got)
	}
	if got := r.mustEnter(nextNames); got.Devices.Pod != "next" || !slices.Equal(got.given(), []string{"mlx5_3"}) {
		t.Errorf("%+v", got)
	}
	if _, err := r.enter(goneNames); err == nil {
		t.Error("the names of the pod that has gone lead to devices")
	}
}

// TestSpecLivesAsLongAsItsPod: between a restart of the kubelet and our
// registration the kubelet starts containers without us.
func TestSpecLivesAsLongAsItsPod(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(1), hcas: r.tickets("mlx5_3")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	for range 3 {
		r.kubelet.Restart()
		r.restart()
		r.collect()
		r.pass(time.Hour)
		r.collect()
		if got := r.mustEnter(names); got.Devices.Pod != "a" {
			t.Errorf("%+v", got)
		}
	}
	// The kubelet has lost its checkpoint: it knows the pod, and no devices.
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.collect()
	r.pass(time.Hour)
	r.collect()
	r.mustEnter(names)
	e := r.events.take()
	if len(e) != 1 || !strings.HasPrefix(e[0], "default/a DevicesLost: ") {
		t.Errorf("events: %v", e)
	}
	if err := r.Bind(t.Context(), hcas, want[hcas]); err == nil || !strings.Contains(err.Error(), "no container holds exactly") {
		t.Errorf("error %v", err)
	}
}

// TestNameOfAPodUsedAgain is a StatefulSet's: another pod of the same name has
// other devices, and nothing of the old one's.
func TestNameOfAPodUsedAgain(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{hcas: r.tickets("mlx5_3")}
	old := r.allocate(pod("web-0"), "main", want)
	r.start(want)
	r.kubelet.Delete("default", "web-0")
	r.collect()
	p := pod("web-0")
	p.UID = "another"
	again := asks{hcas: r.tickets("mlx5_3")}
	names := r.allocate(p, "main", again)
	if _, err := r.enter(names); err == nil {
		t.Fatal("the new pod's name leads to something before its start")
	}
	r.start(again)
	r.collect()
	r.pass(goneFor)
	r.collect()
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3"}) {
		t.Errorf("%+v", got)
	}
	if _, err := r.enter(old); err == nil {
		t.Error("the old pod's spec is left")
	}
	if b := r.Bindings(); len(b) != 1 || b[0].UID != "another" {
		t.Errorf("bindings: %+v", b)
	}
}

// TestRoundsLeakNothing: files and goroutines, over many pods.
func TestRoundsLeakNothing(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(1), hcas: r.tickets("mlx5_9", "mlx5_3")}
	before := runtime.NumGoroutine()
	for i := range 60 {
		p := pod(fmt.Sprint("p", i))
		r.allocate(p, "main", want)
		r.start(want)
		r.kubelet.Delete("default", p.Name)
		r.pass(unclaimedFor)
		if _, err := r.Holders(t.Context(), hcas); err != nil { // The kubelet notices the end when it is asked.
			t.Fatal(err)
		}
		if i%10 == 9 {
			r.collect()
		}
	}
	r.pass(goneFor)
	r.collect()
	if n := r.left(); n != 6 {
		t.Errorf("%d files are left, want those of the last pod, which the checkpoint has", n)
	}
	r.lister.serving.Wait()
	if after := runtime.NumGoroutine(); after > before+10 {
		t.Errorf("%d goroutines, and %d before", after, before)
	}
	if len(r.Binder.records) != 2 || len(r.gone) != 0 {
		t.Errorf("%d records, %d of them gone", len(r.Binder.records), len(r.gone))
	}
}

// TestHCAsThatFail: a container that runs keeps what it has, and one that
// starts again gets what works.
func TestHCAsThatFail(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0, 1), hcas: r.tickets("mlx5_0", "mlx5_3")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	r.down("mlx5_3")
	bound := maps.Clone(r.Bound(hcas))
	h := func(name string) string { return hcaNamed(r.machine, name).PCI }
	if diff := cmp.Diff(map[string]string{want[hcas][0]: h("mlx5_0"), want[hcas][1]: h("mlx5_3")}, bound); diff != "" {
		t.Errorf("while it runs (-want +got):\n%s", diff)
	}
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_0", "mlx5_4"}) {
		t.Errorf("at the next start: %v", got.given())
	}
	if e := r.events.take(); len(e) != 1 || !strings.Contains(e[0], "FarHCAs") {
		t.Errorf("events: %v", e)
	}
	r.up("mlx5_3")
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_0", "mlx5_4"}) {
		t.Errorf("when it is back, without need: %v", got.given())
	}
}

// TestResourceLeavesTheConfiguration: who has it keeps it, over restarts too.
func TestResourceLeavesTheConfiguration(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0), hcas: r.tickets("mlx5_9")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	first := r.mustEnter(names)
	late := asks{hcas: r.tickets("mlx5_4")}
	r.allocate(pod("late"), "main", late)
	r.config.RDMA.Resources = nil
	r.restart()
	r.start(want)
	if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
		t.Errorf("at the next start (-first +next):\n%s", diff)
	}
	if err := r.Bind(t.Context(), hcas, late[hcas]); err == nil || !strings.Contains(err.Error(), "no HCA to be had") {
		t.Errorf("one that never started: %v", err)
	}
	if _, err := r.Name(hcas, want[hcas]); err == nil {
		t.Error("a name was given out")
	}
}

// TestTwoResourcesInOneContainer have different HCAs, and one list of them.
func TestTwoResourcesInOneContainer(t *testing.T) {
	r := newRig(t, "h20-4nic", func(c *config.NodeConfig) {
		second := c.RDMA.Resources[0]
		second.Name = "rdma/second"
		c.RDMA.Resources = append(c.RDMA.Resources, second)
	})
	r.spec("a", corev1.Container{Name: "main"})
	want := asks{gpus: r.cards(2), hcas: r.tickets("mlx5_1"), "rdma/second": r.tickets("mlx5_1")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	got := r.mustEnter(names)
	if !slices.Contains(got.Env, "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1") || !slices.Equal(got.Nodes, []string{"rdma_cm", "uverbs0", "uverbs1"}) {
		t.Errorf("%+v", got)
	}
	more := asks{hcas: r.tickets("mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "mlx5_3/1"), "rdma/second": r.tickets("mlx5_0/1", "mlx5_1/1")}
	names = r.allocate(pod("b"), "main", more)
	r.start(more)
	if got := r.mustEnter(names); len(got.Nodes) != 5 {
		t.Errorf("more than there are HCAs: %+v", got)
	}
	if e := r.events.take(); e != nil {
		t.Errorf("events: %v", e)
	}
}

func BenchmarkBind(b *testing.B) {
	r := newRig(b, "dgx-h100")
	// The CDI directory is on a tmpfs, as /var/run/cdi; the state is on a disk.
	if dir, err := os.MkdirTemp("/dev/shm", "cdi"); err == nil {
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		r.options.CDIDir = dir
		r.restart()
	}
	wants, _ := r.crowd(100)
	for _, want := range wants {
		r.start(want)
	}
	r.spec("next", corev1.Container{Name: "main"})
	var took []time.Duration
	limit := time.NewTicker(12 * time.Millisecond) // The kubelet takes 100 calls a second.
	defer limit.Stop()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		want := asks{hcas: r.tickets("mlx5_0/60", "mlx5_9/60")}
		r.allocate(pod("next"), "main", want)
		<-limit.C
		b.StartTimer()
		start := time.Now()
		if err := r.Bind(b.Context(), hcas, want[hcas]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// TestDecisionsLaterThanTheAccountCount: two starts looked at the kubelet at
// the same time, and one decides after the other.
func TestDecisionsLaterThanTheAccountCount(t *testing.T) {
	r := newRig(t, "dgx-h100", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
	want := asks{gpus: r.cards(0), hcas: r.tickets("mlx5_9")}
	names := r.allocate(pod("a"), "main", want)
	before, err := r.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := asks{gpus: r.cards(0), hcas: r.tickets("mlx5_0")}
	r.allocate(pod("other"), "main", other)
	r.start(other)
	if err := r.Binder.start(t.Context(), before.owners(hcas, want[hcas])[0].owner, before); err != nil {
		t.Fatal(err)
	}
	if got := r.mustEnter(names); slices.Contains(got.given(), "mlx5_0") {
		t.Errorf("two containers have %v", got.given())
	}
}

// TestTicketsKeepTheirHCA when another ticket of the container gets another.
func TestTicketsKeepTheirHCA(t *testing.T) {
	r := newRig(t, "dgx-h100")
	want := asks{gpus: r.cards(0, 1), hcas: r.tickets("mlx5_10", "mlx5_9")}
	r.allocate(pod("a"), "main", want)
	r.start(want)
	first := r.Bound(hcas)
	r.down("mlx5_0")
	r.start(want)
	kept := 0
	for ticket, hca := range r.Bound(hcas) {
		if hca == hcaNamed(r.machine, "mlx5_3").PCI && first[ticket] == hca {
			kept++
		}
	}
	if kept != 1 {
		t.Errorf("first %v, then %v", first, r.Bound(hcas))
	}
}
