package gpumode

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

const (
	native = config.ModeNative
	shared = config.ModeSGPU
	cordon = config.ModeSwitchCordon
	wait   = config.ModeSwitchWait
)

func by(mode config.Mode, pods ...string) map[config.Mode][]string {
	return map[config.Mode][]string{mode: pods}
}

// TestOneStep has one GPU, native and to be shared unless the case has
// another one, and one observation of it.
func TestOneStep(t *testing.T) {
	now := time.Unix(1000, 0)
	long := now.Add(-freeFor)
	base := gpuState{mode: native, wanted: shared, checked: true, observed: true, draining: true, published: long}
	for _, tt := range []struct {
		name string
		gpu  func(*gpuState)
		see  usage
		how  config.ModeSwitch
		want func(*gpuState)
	}{
		{
			"held: no new pod, until it ends", func(c *gpuState) { c.draining = false },
			usage{held: by(native, "ml/train")},
			cordon,
			func(c *gpuState) { c.draining, c.holders = true, []string{"ml/train"} },
		},
		{
			"held, and patience: offered as before", nil,
			usage{held: by(native, "ml/train")},
			wait,
			func(c *gpuState) { c.draining, c.holders = false, []string{"ml/train"} },
		},
		{"free by chance, with patience", func(c *gpuState) { c.draining = false }, usage{}, wait, func(c *gpuState) { c.draining = true }},
		{"the kubelet still offers it", nil, usage{offered: map[config.Mode]bool{native: true}}, cordon, nil},
		{
			"the kubelet offers it again", func(c *gpuState) { c.freeSince = long },
			usage{offered: map[config.Mode]bool{native: true}},
			cordon, nil,
		},
		{"what the kubelet offers in the other mode does not matter", nil, usage{offered: map[config.Mode]bool{shared: true}}, cordon, func(c *gpuState) { c.freeSince = now }},
		{"Allocate is in flight", func(c *gpuState) { c.freeSince = long }, usage{allocating: true}, cordon, nil},
		{
			"PreStart is in flight since before all resources knew", func(c *gpuState) { c.freeSince = long },
			usage{starting: map[config.Mode]time.Time{native: long}},
			cordon, nil,
		},
		{
			"PreStart began later, or is of the other mode", func(c *gpuState) { c.freeSince = long },
			usage{starting: map[config.Mode]time.Time{native: now, shared: long.Add(-1)}},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: shared, wanted: shared, checked: true, published: long, writing: true}
			},
		},
		{"the resources have not been notified", func(c *gpuState) { c.published, c.freeSince = time.Time{}, long }, usage{}, cordon, nil},
		{"free for the first time", nil, usage{}, cordon, func(c *gpuState) { c.freeSince = now }},
		{"not free for long enough", func(c *gpuState) { c.freeSince = long.Add(1) }, usage{}, cordon, func(c *gpuState) { c.freeSince = long.Add(1) }},
		{
			"moves", func(c *gpuState) { c.freeSince = long },
			usage{},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: shared, wanted: shared, checked: true, published: long, writing: true}
			},
		},
		{
			"moves back", func(c *gpuState) { c.mode, c.wanted, c.freeSince = shared, native, long },
			usage{},
			wait,
			func(c *gpuState) {
				*c = gpuState{mode: native, wanted: native, checked: true, published: long, writing: true}
			},
		},
		{
			"those who hold it in the new mode already do not keep it", func(c *gpuState) { c.freeSince = long },
			usage{held: by(shared, "ml/b")},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: shared, wanted: shared, checked: true, published: long, writing: true}
			},
		},
		{"while its mode is being written nothing is decided", func(c *gpuState) { c.writing = true }, usage{held: by(native, "ml/b")}, cordon, func(c *gpuState) { c.observed = true }},
		{
			"held in the other mode too: no new pod", func(c *gpuState) { c.wanted, c.draining = native, false },
			usage{held: map[config.Mode][]string{native: {"ml/a"}, shared: {"ml/b"}}},
			cordon,
			func(c *gpuState) { c.draining, c.holders, c.others = true, []string{"ml/a"}, []string{"ml/b"} },
		},
		{"no longer", func(c *gpuState) { c.wanted, c.others = native, []string{"ml/b"} }, usage{}, cordon, func(c *gpuState) { c.draining, c.others = false, nil }},
		{
			"first start: no pod holds it", func(c *gpuState) { *c = gpuState{wanted: shared} },
			usage{},
			cordon,
			func(c *gpuState) { *c = gpuState{mode: shared, wanted: shared, checked: true, observed: true} },
		},
		{
			"first start: its holders decide", func(c *gpuState) { *c = gpuState{wanted: shared} },
			usage{held: by(native, "ml/a")},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: native, wanted: shared, checked: true, observed: true, draining: true, holders: []string{"ml/a"}}
			},
		},
		{
			"restart: the record is contradicted", func(c *gpuState) { *c = gpuState{mode: native, wanted: native} },
			usage{held: by(shared, "ml/a")},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: shared, wanted: native, checked: true, observed: true, draining: true, holders: []string{"ml/a"}}
			},
		},
		{
			"restart in the middle", func(c *gpuState) { *c = gpuState{mode: native, wanted: shared, draining: true} },
			usage{held: by(native, "ml/a")},
			cordon,
			func(c *gpuState) {
				*c = gpuState{mode: native, wanted: shared, checked: true, observed: true, draining: true, holders: []string{"ml/a"}}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := base
			if tt.gpu != nil {
				tt.gpu(&c)
			}
			tt.see.at = now
			got := observe(c, &tt.see, tt.how)
			want := base
			if tt.gpu != nil {
				tt.gpu(&want)
			}
			want.freeSince = time.Time{}
			if tt.want != nil {
				tt.want(&want)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(gpuState{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAim(t *testing.T) {
	free := gpuState{mode: native, wanted: native, checked: true}
	held := gpuState{mode: native, wanted: shared, checked: true, observed: true, draining: true, holders: []string{"ml/a"}}
	for _, tt := range []struct {
		name   string
		gpu    gpuState
		wanted config.Mode
		how    config.ModeSwitch
		want   gpuState
	}{
		{"nothing new", free, native, cordon, free},
		{"a switch: no new pod at once", free, shared, cordon, gpuState{mode: native, wanted: shared, checked: true, draining: true}},
		{"a switch with patience: first see which pod holds it", free, shared, wait, gpuState{mode: native, wanted: shared, checked: true}},
		{"the mind is changed back", held, native, cordon, free},
		{"patience from now on", held, shared, wait, gpuState{mode: native, wanted: shared, checked: true, observed: true, holders: []string{"ml/a"}}},
		{"not known yet", gpuState{}, shared, cordon, gpuState{wanted: shared}},
		{
			"it has just moved",
			gpuState{mode: shared, wanted: shared, checked: true, writing: true},
			native, cordon,
			gpuState{mode: shared, wanted: native, checked: true, writing: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, configure(tt.gpu, tt.wanted, tt.how), cmp.AllowUnexported(gpuState{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWords(t *testing.T) {
	for _, tt := range []struct {
		name          string
		gpu           gpuState
		until, reason string
	}{
		{"as configured", gpuState{mode: native, wanted: native}, "", ""},
		{
			"one holder",
			gpuState{mode: native, wanted: shared, draining: true, observed: true, holders: []string{"ml/a"}},
			"ml/a ends", "moves to sgpu when ml/a ends",
		},
		{"two, with patience", gpuState{mode: shared, wanted: native, observed: true, holders: []string{"ml/a", "ml/b"}}, "ml/a and ml/b end", ""},
		{
			"three",
			gpuState{mode: shared, wanted: native, observed: true, holders: []string{"a/a", "b/b", "c/c"}},
			"a/a, b/b and c/c end", "",
		},
		{
			"five",
			gpuState{mode: shared, wanted: native, observed: true, holders: []string{"a/a", "b/b", "c/c", "d/d", "e/e"}},
			"a/a, b/b, c/c and 2 more end", "",
		},
		{
			"free",
			gpuState{mode: native, wanted: shared, draining: true, observed: true},
			"the kubelet no longer offers it", "moves to sgpu when the kubelet no longer offers it",
		},
		{"not known", gpuState{wanted: shared}, "it is known who holds it", ""},
		{"being written", gpuState{mode: shared, wanted: shared, writing: true}, "its mode is on disk", ""},
		{
			"not written",
			gpuState{mode: native, wanted: shared, draining: true, observed: true, unwritten: true},
			"its mode is on disk", "moves to sgpu when its mode is on disk",
		},
		{
			"held twice",
			gpuState{mode: native, wanted: native, draining: true, others: []string{"ml/b"}},
			"", "held as sgpu too, until ml/b ends",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if until, reason := tt.gpu.until(), tt.gpu.unavailable(); until != tt.until || reason != tt.reason {
				t.Errorf("until %q, want %q; unavailable %q, want %q", until, tt.until, reason, tt.reason)
			}
		})
	}
}
