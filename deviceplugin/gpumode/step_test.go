package gpumode

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

const (
	native = config.ModeNative
	shared = config.ModeSGPU
)

func by(mode config.Mode, pods ...string) map[config.Mode][]string {
	return map[config.Mode][]string{mode: pods}
}

// TestOneStep has one GPU, native and to be shared unless the case has another one, and
// one observation of it.
func TestOneStep(t *testing.T) {
	now := time.Unix(1000, 0)
	long := now.Add(-freeFor)
	base := gpuState{mode: native, wanted: shared, checked: true, observed: true, phase: draining, shown: long}
	for _, tt := range []struct {
		name  string
		gpu   func(*gpuState)
		see   usage
		want  func(*gpuState)
		moves bool
	}{
		{
			"held: no new pod, until it ends", func(g *gpuState) { g.phase = open },
			usage{held: by(native, "ml/train")},
			func(g *gpuState) { g.phase, g.shown, g.holders = draining, time.Time{}, []string{"ml/train"} }, false,
		},
		{"the kubelet still offers it", nil, usage{offered: map[config.Mode]bool{native: true}}, nil, false},
		{
			"the kubelet offers it again", func(g *gpuState) { g.freeSince = long },
			usage{offered: map[config.Mode]bool{native: true}},
			func(g *gpuState) { g.freeSince = time.Time{} }, false,
		},
		{
			"what the kubelet offers in the other mode does not matter", nil,
			usage{offered: map[config.Mode]bool{shared: true}},
			func(g *gpuState) { g.freeSince = now }, false,
		},
		{"the resources do not follow yet", func(g *gpuState) { g.shown = time.Time{} }, usage{}, nil, false},
		{"asked before the resources followed", func(g *gpuState) { g.shown = now }, usage{}, nil, false},
		{"not free for long enough", func(g *gpuState) { g.freeSince = long.Add(1) }, usage{}, nil, false},
		{
			"free for long enough: it leaves its resource", func(g *gpuState) { g.freeSince = long },
			usage{},
			func(g *gpuState) { g.phase, g.shown, g.freeSince = leaving, time.Time{}, time.Time{} }, false,
		},
		{"its resource has not dropped it yet", func(g *gpuState) { g.phase, g.shown = leaving, time.Time{} }, usage{}, nil, false},
		{
			"a call slipped in before it left", func(g *gpuState) { g.phase = leaving },
			usage{held: by(native, "ml/late")},
			func(g *gpuState) { g.phase, g.shown, g.holders = draining, time.Time{}, []string{"ml/late"} }, false,
		},
		{"it has left: it moves", func(g *gpuState) { g.phase = leaving }, usage{}, nil, true},
		{
			"those who hold it in the new mode already do not keep it", func(g *gpuState) { g.phase = leaving },
			usage{held: by(shared, "ml/b")},
			func(g *gpuState) { g.others, g.otherMode = []string{"ml/b"}, shared }, true,
		},
		{
			"held in the other mode too: no new pod", func(g *gpuState) { g.wanted, g.phase = native, open },
			usage{held: map[config.Mode][]string{native: {"ml/a"}, shared: {"ml/b"}}},
			func(g *gpuState) {
				g.phase, g.shown, g.holders, g.others = draining, time.Time{}, []string{"ml/a"}, []string{"ml/b"}
				g.otherMode = shared
			}, false,
		},
		{
			"no longer", func(g *gpuState) { g.wanted, g.others = native, []string{"ml/b"} },
			usage{},
			func(g *gpuState) { g.phase, g.shown, g.others = open, time.Time{}, nil }, false,
		},
		{
			"first start: no pod holds it", func(g *gpuState) { *g = gpuState{wanted: shared} },
			usage{},
			func(g *gpuState) { *g = gpuState{mode: shared, wanted: shared, checked: true, observed: true} }, false,
		},
		{
			"first start: its holders decide", func(g *gpuState) { *g = gpuState{wanted: shared} },
			usage{held: by(native, "ml/a")},
			func(g *gpuState) {
				*g = gpuState{mode: native, wanted: shared, checked: true, observed: true, phase: draining, holders: []string{"ml/a"}}
			}, false,
		},
		{
			"restart: the record is contradicted", func(g *gpuState) { *g = gpuState{mode: native, wanted: native} },
			usage{held: by(shared, "ml/a")},
			func(g *gpuState) {
				*g = gpuState{mode: shared, wanted: native, checked: true, observed: true, phase: draining, holders: []string{"ml/a"}}
			}, false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := base
			if tt.gpu != nil {
				tt.gpu(&g)
			}
			want := g
			if tt.want != nil {
				tt.want(&want)
			}
			tt.see.asked = now
			got, moves := observe(g, &tt.see)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(gpuState{})); diff != "" || moves != tt.moves {
				t.Errorf("moves %t, want %t (-want +got):\n%s", moves, tt.moves, diff)
			}
		})
	}
}

func TestConfigure(t *testing.T) {
	free := gpuState{mode: native, wanted: native, checked: true}
	held := gpuState{mode: native, wanted: shared, checked: true, observed: true, phase: draining, holders: []string{"ml/a"}}
	for _, tt := range []struct {
		name   string
		gpu    gpuState
		wanted config.Mode
		want   gpuState
	}{
		{"nothing new", free, native, free},
		{"a switch: no new pod at once", free, shared, gpuState{mode: native, wanted: shared, checked: true, phase: draining}},
		{"the mode is wanted again", held, native, free},
		{"not known yet", gpuState{}, shared, gpuState{wanted: shared}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, configure(tt.gpu, tt.wanted), cmp.AllowUnexported(gpuState{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTexts(t *testing.T) {
	for _, tt := range []struct {
		name          string
		gpu           gpuState
		until, reason string
	}{
		{"as configured", gpuState{mode: native, wanted: native}, "", ""},
		{
			"one holder",
			gpuState{mode: native, wanted: shared, phase: draining, observed: true, holders: []string{"ml/a"}},
			"ml/a ends", "moves to sgpu when ml/a ends",
		},
		{"two", gpuState{mode: shared, wanted: native, observed: true, holders: []string{"ml/a", "ml/b"}}, "ml/a, ml/b end", ""},
		{
			"five",
			gpuState{mode: shared, wanted: native, observed: true, holders: []string{"a/a", "b/b", "c/c", "d/d", "e/e"}},
			"a/a, b/b, c/c and 2 more end", "",
		},
		{
			"free",
			gpuState{mode: native, wanted: shared, phase: draining, observed: true},
			"the kubelet no longer offers it", "moves to sgpu when the kubelet no longer offers it",
		},
		{"not known", gpuState{wanted: shared}, "it is known who holds it", ""},
		{"held twice", gpuState{mode: native, wanted: native, phase: draining, others: []string{"ml/b"}, otherMode: shared}, "", "held as sgpu too, until ml/b ends"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if until, reason := tt.gpu.until(), tt.gpu.unavailable(); until != tt.until || reason != tt.reason {
				t.Errorf("until %q, want %q; unavailable %q, want %q", until, tt.until, reason, tt.reason)
			}
		})
	}
}

const (
	gpus  = "nvidia.com/gpu"
	sgpus = "nvidia.com/sgpu"
)

// kubelet is one whose accounts a test sets.
type kubelet struct {
	mu      sync.Mutex
	offered []inventory.Held
	held    []inventory.Held
	down    bool
	asked   int
}

func (k *kubelet) observe() *Observation {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.down {
		return &Observation{Err: errors.New("no socket")}
	}
	return &Observation{Asked: time.Now(), Offered: k.offered, Held: k.held}
}

// follow observes as an agent does, until ctx ends.
func follow(ctx context.Context, tracker *Tracker, observe func() *Observation) {
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tracker.Pending():
		case <-next:
		}
		next = nil
		if again := tracker.Observe(observe()); again > 0 {
			next = time.After(again)
		}
	}
}

func two() *machine.Machine {
	return &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
}

func configured(mode config.Mode, gpus ...config.GPURef) *config.NodeConfig {
	c := config.Default()
	c.Mode, c.SGPU.GPUs = mode, gpus
	return &c
}

// start follows a Tracker in a bubble; stop waits for its end.
func start(t *testing.T, dir string, k *kubelet) (tracker *Tracker, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tracker = New(dir, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(ctx, tracker, k.observe)
	}()
	return tracker, sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// round is an agent's: the resources' lists follow, as long as something
// changes.
func round(tracker *Tracker, m *machine.Machine, c *config.NodeConfig) {
	for {
		tracker.Round(m, c)
		tracker.Published(tracker.GPUs())
		synctest.Wait()
		select {
		case <-tracker.Changed():
		default:
			return
		}
	}
}

// later lets time pass for a Tracker whose agent follows it.
func later(tracker *Tracker, m *machine.Machine, c *config.NodeConfig, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		pause(every / 6)
		synctest.Wait()
		round(tracker, m, c)
	}
}

func states(tracker *Tracker) []string {
	var all []string
	for _, c := range tracker.GPUs() {
		text := c.Mode + " of " + c.Wanted
		if c.Until != "" {
			text += " until " + c.Until
		}
		if c.Cordoned {
			text += ", cordoned"
		}
		all = append(all, text)
	}
	return all
}

// offered reports whether a GPU is offered in a mode, and why no new pod gets it.
func offered(tracker *Tracker, g *machine.GPU, in config.Mode) (is bool, unavailable string) {
	for _, now := range tracker.GPUs() {
		if now.UUID == g.UUID && now.Offered == in {
			return true, now.Unavailable
		}
	}
	return false, ""
}

func want(t *testing.T, tracker *Tracker, what string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, states(tracker)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
