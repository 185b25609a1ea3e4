package binder

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
)

// TestSharesOutliveRestartsInEveryGap kills the plugin, the kubelet or both
// after every step and after every file that a step writes. Containers keep
// their cards, and nobody else gets them.
func TestSharesOutliveRestartsInEveryGap(t *testing.T) {
	for _, who := range []string{"plugin", "kubelet", "both"} {
		t.Run(who, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			fail := func() {
				if who != "plugin" {
					r.kubelet.Restart()
				}
				if who != "kubelet" {
					r.restart()
				}
			}
			first := r.tenant("first", "60/40", r.slot(1, 0))
			fail()
			r.start(first)
			fail()
			want := asks{slots: {r.slot(0, 0)}}
			lost, err := r.Name(slots, want[slots]) // The answer never arrived.
			if err != nil {
				t.Fatal(err)
			}
			fail()
			r.wants("a", nil, sharer("main", "50/40"))
			names := r.allocate(pod("a"), "main", want)
			fail()
			r.start(want)
			before := r.mustEnter(names)
			cards := r.cardsOf("a", "main")
			for _, cut := range files(t, r, names) {
				if err := os.Remove(cut); err != nil {
					t.Fatal(err)
				}
				fail()
				if err := r.bindShares(r.tenant("thief", "60/40", r.slot(0, 3))); err == nil {
					t.Fatalf("without %s another pod has what is taken", filepath.Base(cut))
				}
				r.start(want)
				if diff := cmp.Diff(before, r.mustEnter(names)); diff != "" {
					t.Errorf("without %s (-first +now):\n%s", filepath.Base(cut), diff)
				}
			}
			if got := r.cardsOf("a", "main"); !slices.Equal(got, cards) {
				t.Errorf("cards %v, then %v", cards, got)
			}
			if _, err := r.enter(map[string]string{slots: lost}); err == nil {
				t.Error("a name that nobody has leads to a card")
			}
			r.nothingOvercommitted()
		})
	}
}

// TestLostRecordsAreMadeAnew from the specs: who has what must be known before
// anybody starts again.
func TestLostRecordsAreMadeAnew(t *testing.T) {
	for _, how := range []string{"gone", "corrupt"} {
		t.Run(how, func(t *testing.T) {
			r := shareRig(t, "0")
			p := r.wants("p", nil, sharer("main", "50/10"))
			p.Spec.InitContainers = []corev1.Container{sharer("init", "70/10")}
			init, main := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(0, 1)}}
			r.allocate(pod("p"), "init", init)
			names := r.allocate(pod("p"), "main", main)
			r.start(init)
			r.start(main)
			before, bindings := r.mustEnter(names), r.Bindings()
			records, err := filepath.Glob(filepath.Join(r.options.StateDir, recordDir, "*.json"))
			if err != nil || len(records) != 2 {
				t.Fatalf("%v: %v", records, err)
			}
			for _, path := range records {
				if err = os.Remove(path); how == "corrupt" {
					err = os.WriteFile(path, []byte("{"), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.restart()
			if err := r.bindShares(r.tenant("thief", "31/1", r.slot(0, 2))); err == nil {
				t.Error("another pod has what is taken")
			}
			if err := r.bindShares(r.tenant("other", "30/1", r.slot(0, 3))); err != nil {
				t.Errorf("what is left cannot be had: %v", err)
			}
			_, drifts, err := r.Reconcile(t.Context())
			if err != nil || len(drifts) != 2 || drifts[0].Kind != DriftRecord {
				t.Errorf("drifts %v, error %v", drifts, err)
			}
			got := slices.DeleteFunc(r.Bindings(), func(b Binding) bool { return b.Pod == "other" })
			if diff := cmp.Diff(bindings, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("bindings (-before +now):\n%s", diff)
			}
			r.start(main)
			if diff := cmp.Diff(before, r.mustEnter(names)); diff != "" {
				t.Errorf("at the next start (-first +next):\n%s", diff)
			}
			if _, drifts, err := r.Reconcile(t.Context()); err != nil || len(drifts) > 0 {
				t.Errorf("told again: %v, error %v", drifts, err)
			}
		})
	}
}

// TestSpecsThatSaySomethingElse are no records.
func TestSpecsThatSaySomethingElse(t *testing.T) {
	const device = "0123456789ab-0123456789abcdef"
	for _, env := range []string{
		``, `"HEDDLE_SHARES=[]"`, `"HEDDLE_SHARES={}"`, `"HEDDLE_SHARES={\"shares\":[{\"vcore\":-1}]}"`,
		`"HEDDLE_SHARES={\"shares\":[{\"memoryMiB\":1e18}]}"`,
	} {
		r := &record{Kind: kindSGPU, Device: device, IDs: []string{"x::0"}}
		spec := `{"devices":[{"name":"` + device + `","containerEdits":{"env":[` + env + `]}}]}`
		if err := r.read([]byte(spec)); err == nil || len(r.Shares) > 0 {
			t.Errorf("%s: error %v, shares %v", env, err, r.Shares)
		}
	}
}

// TestWholeCards: a card that a pod has whole is nobody else's, and the other
// way round, whatever the kubelet offers.
func TestWholeCards(t *testing.T) {
	r := shareRig(t)
	native := asks{gpus: r.cards(2)}
	r.spec("native", corev1.Container{Name: "main"})
	r.allocate(pod("native"), "main", native)
	want := r.tenant("a", "10/1", r.slot(2, 0)) // Of equal cards it would get the one that its ticket names.
	r.start(want)
	if got := r.cardsOf("a", "main"); slices.Equal(got, []int{2}) {
		t.Error("it shares a card that a pod has whole")
	}
	all := r.nothingOvercommitted()
	if all[2].Against != "held whole by default/native" {
		t.Errorf("card 2: %+v", all[2])
	}
	other := asks{gpus: r.cards(r.cardsOf("a", "main")...)}
	r.spec("late", corev1.Container{Name: "main"})
	r.allocate(pod("late"), "main", other)
	if err := r.Bind(t.Context(), gpus, other[gpus]); err == nil || !strings.Contains(err.Error(), "is shared by container main of default/a") {
		t.Errorf("error %v", err)
	}
	r.start(native)
}

// TestForgottenSharesStayTaken: the kubelet lost its checkpoint, and offers
// tickets of running containers again.
func TestForgottenSharesStayTaken(t *testing.T) {
	r := shareRig(t, "0")
	want := r.tenant("a", "60/40", r.slot(0, 0))
	r.start(want)
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.restart()
	_, drifts, err := r.Reconcile(t.Context())
	if err != nil || len(drifts) != 1 || drifts[0].Kind != DriftLost {
		t.Errorf("drifts %v, error %v", drifts, err)
	}
	if err := r.bindShares(r.tenant("b", "50/10", r.slot(0, 0))); err == nil || !strings.Contains(err.Error(), "40 % of 100 left") {
		t.Errorf("error %v", err)
	}
	if err := r.bindShares(r.tenant("c", "40/10", r.slot(0, 1))); err != nil {
		t.Error(err)
	}
}

// TestOvercommitFromOutside: the card has less than what is given out already.
func TestOvercommitFromOutside(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.tenant("a", "10/40", r.slot(0, 0)))
	r.start(r.tenant("b", "10/30", r.slot(0, 1)))
	r.config.SGPU.SlotsPerGPU = 1
	for _, want := range []int{1, 0} {
		_, drifts, err := r.Reconcile(t.Context())
		if err != nil || len(drifts) != want || want > 0 && !strings.Contains(drifts[0].Message, "2 tenants on 1 slots") {
			t.Errorf("drifts %v, error %v", drifts, err)
		}
	}
	if err := r.bindShares(r.tenant("c", "1/1", r.slot(0, 2))); err == nil {
		t.Error("somebody new gets the card")
	}
}

// TestManySharesAtOnce starts a hundred containers at once, whose pods ask for
// more than there is. What is given out is never more than there is, everybody
// who starts sees its own, and who does not has been told why.
func TestManySharesAtOnce(t *testing.T) {
	r := shareRig(t)
	const n = 100
	rng := rand.New(rand.NewPCG(1, 2))
	type tenant struct {
		want  asks
		names map[string]string
		share allocation.Share
	}
	tenants := make([]tenant, n)
	for i := range tenants {
		ask, annotations := fmt.Sprintf("%d/%d", 5+rng.IntN(20), 1+rng.IntN(12)), map[string]string(nil)
		card := rng.IntN(8)
		if i%2 == 0 { // Forged or not: all of them name the same two cards.
			annotations = r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(card%2, ask)}})
		}
		name := fmt.Sprintf("pod-%d", i)
		r.wants(name, annotations, sharer("main", ask))
		tenants[i].want = asks{slots: {r.slot(i%8, i/8)}}
		tenants[i].share = r.share(0, ask)
		tenants[i].names = r.allocate(pod(name), "main", tenants[i].want)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range tenants {
		all.Go(func() { errs[i] = r.bindShares(tenants[i].want) })
	}
	all.Wait()
	started := 0
	for i := range tenants {
		if errs[i] != nil {
			if !strings.Contains(errs[i].Error(), "gets no card") {
				t.Errorf("pod-%d: %v", i, errs[i])
			}
			continue
		}
		started++
		got := r.mustEnter(tenants[i].names)
		want := tenants[i].share
		if len(got.Devices.GPUs) != 1 || got.Devices.Pod != fmt.Sprintf("pod-%d", i) ||
			got.Devices.GPUs[0].Share.VCore != want.VCore || got.Devices.GPUs[0].Share.MemoryMiB != want.MemoryMiB {
			t.Errorf("pod-%d asks for %+v and sees %+v", i, want, got.Devices)
		}
		if diff := cmp.Diff([]string{fmt.Sprintf("/dev/nvidia%d", got.Devices.GPUs[0].Index)}, got.Nodes); diff != "" {
			t.Errorf("pod-%d (-want +got):\n%s", i, diff)
		}
		if i%2 == 0 && got.Devices.GPUs[0].Index > 1 {
			t.Errorf("pod-%d was scheduled elsewhere than to card %d", i, got.Devices.GPUs[0].Index)
		}
	}
	if started < 40 || started == n || len(r.Refused()) != n-started {
		t.Errorf("%d of %d have started, %d are refused", started, n, len(r.Refused()))
	}
	r.nothingOvercommitted()
	calls, rejected := r.kubelet.PodResourcesCalls()
	if calls-rejected > n/2 {
		t.Errorf("%d calls of PodResources for %d starts", calls-rejected, n)
	}
	t.Logf("%d of %d started, %d calls of PodResources, %d rejected", started, n, calls, rejected)
	// After a restart all is as it was.
	before := r.Bindings()
	r.restart()
	for i := range tenants {
		if errs[i] == nil {
			r.start(tenants[i].want)
		}
	}
	if diff := cmp.Diff(before, r.Bindings()); diff != "" {
		t.Errorf("bindings (-before +after):\n%s", diff)
	}
}

// TestChurnOfShares: pods come and go at random while starts run side by side.
// No card is ever over-committed, and in the end nothing is taken.
func TestChurnOfShares(t *testing.T) {
	r := shareRig(t, "0", "1", "2")
	rng := rand.New(rand.NewPCG(3, 4))
	live, held := map[string]asks{}, map[string]string{}
	for round := range 40 {
		var all sync.WaitGroup
		for i := range 6 {
			name, ticket := fmt.Sprintf("pod-%d-%d", round, i), r.slot(i%3, (round*6+i)%16)
			ask := fmt.Sprintf("%d/%d", 10+rng.IntN(60), 1+rng.IntN(30))
			if held[ticket] != "" {
				continue
			}
			held[ticket] = name
			live[name] = r.tenant(name, ask, ticket)
		}
		for _, want := range live {
			all.Go(func() { _ = r.bindShares(want) })
		}
		all.Wait()
		r.nothingOvercommitted()
		if round%7 == 3 {
			r.restart()
		}
		for name := range live {
			if rng.IntN(3) == 0 {
				r.kubelet.Delete("default", name)
				delete(held, live[name][slots][0])
				delete(live, name)
			}
		}
		if _, err := r.look(t.Context()); err != nil { // The kubelet frees what is gone.
			t.Fatal(err)
		}
	}
	for name := range live {
		r.kubelet.Delete("default", name)
	}
	for _, card := range r.nothingOvercommitted() {
		if card.VCore != 0 || card.UsedMiB != 0 || card.Tenants != 0 {
			t.Errorf("taken by nobody: %+v", card)
		}
	}
	if len(r.Bindings()) > 0 {
		t.Errorf("bindings %+v", r.Bindings())
	}
}

// TestOldPodsCountAfterAKubeletsStart: it may not list its pods yet.
func TestOldPodsCountAfterAKubeletsStart(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.tenant("a", "60/40", r.slot(0, 0)))
	r.kubelet.Delete("default", "a") // As if it were not known yet.
	late := r.tenant("b", "60/40", r.slot(0, 1))
	r.Wake()
	if err := r.bindShares(late); err == nil {
		t.Error("it has the card of a pod that the kubelet may not know yet")
	}
	r.pass(goneFor + time.Second)
	if err := r.bindShares(late); err != nil {
		t.Error(err)
	}
}

// TestNobodyIsGoneWhileAKubeletStarts: one that has not registered us yet is
// known by its sockets. What pods and Nodes are told must not waver.
func TestNobodyIsGoneWhileAKubeletStarts(t *testing.T) {
	const old, just = 10 * time.Minute, time.Second
	for _, tt := range []struct {
		name          string
		first, second time.Duration // how old the sockets are; 0 is not there
		there         bool
	}{
		{"it runs", old, old, false},
		{"it runs, and made the second a moment before the first", old, old + startsWithin, false},
		{"it runs, and was slow to start", old, old - time.Minute, false},
		{"it has just started", just, just, true},
		{"it answers, and knows nobody yet", just, old, true},
		{"it has answered for a minute, and knows nobody yet", time.Minute, old, true},
		{"the same, and somebody removed the second", time.Minute, 0, true},
		{"it knew its pods a moment ago", time.Minute, just, true},
		{"there is none", 0, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0")
			r.options.Sockets = [2]string{filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")}
			r.restart()
			r.start(r.tenant("a", "60/40", r.slot(0, 0)))
			r.pass(goneFor + time.Second)
			for i, age := range []time.Duration{tt.first, tt.second} {
				if age == 0 {
					continue
				}
				made := r.now.Add(-age)
				if err := errors.Join(
					os.WriteFile(r.options.Sockets[i], nil, 0o600), os.Chtimes(r.options.Sockets[i], made, made),
				); err != nil {
					t.Fatal(err)
				}
			}
			r.restart()
			r.kubelet.Delete("default", "a") // As if it were not known yet.
			cards := r.nothingOvercommitted()
			if there := len(r.Bindings()) == 1; there != tt.there {
				t.Errorf("bindings %+v", r.Bindings())
			}
			if there := cards[0].VCore == 60; there != tt.there {
				t.Errorf("taken: %+v", cards[0])
			}
		})
	}
}

// TestTwoPodsWithOneTicket, as a kubelet does that has forgotten one of them:
// both count, each by what it was given.
func TestTwoPodsWithOneTicket(t *testing.T) {
	r := shareRig(t, "0")
	for _, name := range []string{"a", "b"} {
		if err := r.bindShares(r.tenant(name, "40/30", r.slot(0, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.bindShares(r.tenant("c", "40/1", r.slot(0, 0))); err == nil || !strings.Contains(err.Error(), "20 % of 100 left") {
		t.Errorf("error %v", err)
	}
	r.nothingOvercommitted()
}
