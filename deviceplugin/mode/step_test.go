package mode

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

// TestOneStep has one card, native and to be shared unless the case says
// otherwise, and one look at it.
func TestOneStep(t *testing.T) {
	now := time.Unix(1000, 0)
	long := now.Add(-settle)
	base := card{mode: native, wanted: shared, checked: true, looked: true, withdrawn: true, told: long}
	for _, tt := range []struct {
		name string
		card func(*card)
		see  sight
		how  config.ModeSwitch
		want func(*card)
	}{
		{
			"held: nobody new, until it ends", func(c *card) { c.withdrawn = false },
			sight{held: by(native, "ml/train")},
			cordon,
			func(c *card) { c.withdrawn, c.holders = true, []string{"ml/train"} },
		},
		{
			"held, and patience: offered as before", nil,
			sight{held: by(native, "ml/train")},
			wait,
			func(c *card) { c.withdrawn, c.holders = false, []string{"ml/train"} },
		},
		{"free by chance, with patience", func(c *card) { c.withdrawn = false }, sight{}, wait, func(c *card) { c.withdrawn = true }},
		{"the kubelet still offers it", nil, sight{offered: map[config.Mode]bool{native: true}}, cordon, nil},
		{
			"the kubelet offers it again", func(c *card) { c.quiet = long },
			sight{offered: map[config.Mode]bool{native: true}},
			cordon, nil,
		},
		{"what the kubelet offers in the other mode does not matter", nil, sight{offered: map[config.Mode]bool{shared: true}}, cordon, func(c *card) { c.quiet = now }},
		{"Allocate is in flight", func(c *card) { c.quiet = long }, sight{allocating: true}, cordon, nil},
		{
			"PreStart is in flight since before everybody knew", func(c *card) { c.quiet = long },
			sight{binding: map[config.Mode]time.Time{native: long}},
			cordon, nil,
		},
		{
			"PreStart began later, or is of the other mode", func(c *card) { c.quiet = long },
			sight{binding: map[config.Mode]time.Time{native: now, shared: long.Add(-1)}},
			cordon,
			func(c *card) { *c = card{mode: shared, wanted: shared, checked: true, told: long, writing: true} },
		},
		{"the resources have not been told", func(c *card) { c.told, c.quiet = time.Time{}, long }, sight{}, cordon, nil},
		{"free for the first time", nil, sight{}, cordon, func(c *card) { c.quiet = now }},
		{"not free for long enough", func(c *card) { c.quiet = long.Add(1) }, sight{}, cordon, func(c *card) { c.quiet = long.Add(1) }},
		{
			"moves", func(c *card) { c.quiet = long },
			sight{},
			cordon,
			func(c *card) { *c = card{mode: shared, wanted: shared, checked: true, told: long, writing: true} },
		},
		{
			"moves back", func(c *card) { c.mode, c.wanted, c.quiet = shared, native, long },
			sight{},
			wait,
			func(c *card) { *c = card{mode: native, wanted: native, checked: true, told: long, writing: true} },
		},
		{
			"those who hold it in the new mode already do not keep it", func(c *card) { c.quiet = long },
			sight{held: by(shared, "ml/b")},
			cordon,
			func(c *card) { *c = card{mode: shared, wanted: shared, checked: true, told: long, writing: true} },
		},
		{"while its mode is being written nothing is decided", func(c *card) { c.writing = true }, sight{held: by(native, "ml/b")}, cordon, func(c *card) { c.looked = true }},
		{
			"held in the other mode too: nobody new", func(c *card) { c.wanted, c.withdrawn = native, false },
			sight{held: map[config.Mode][]string{native: {"ml/a"}, shared: {"ml/b"}}},
			cordon,
			func(c *card) { c.withdrawn, c.holders, c.others = true, []string{"ml/a"}, []string{"ml/b"} },
		},
		{"no longer", func(c *card) { c.wanted, c.others = native, []string{"ml/b"} }, sight{}, cordon, func(c *card) { c.withdrawn, c.others = false, nil }},
		{
			"first start: nobody holds it", func(c *card) { *c = card{wanted: shared} },
			sight{},
			cordon,
			func(c *card) { *c = card{mode: shared, wanted: shared, checked: true, looked: true} },
		},
		{
			"first start: its holders decide", func(c *card) { *c = card{wanted: shared} },
			sight{held: by(native, "ml/a")},
			cordon,
			func(c *card) {
				*c = card{mode: native, wanted: shared, checked: true, looked: true, withdrawn: true, holders: []string{"ml/a"}}
			},
		},
		{
			"restart: the record is contradicted", func(c *card) { *c = card{mode: native, wanted: native} },
			sight{held: by(shared, "ml/a")},
			cordon,
			func(c *card) {
				*c = card{mode: shared, wanted: native, checked: true, looked: true, withdrawn: true, holders: []string{"ml/a"}}
			},
		},
		{
			"restart in the middle", func(c *card) { *c = card{mode: native, wanted: shared, withdrawn: true} },
			sight{held: by(native, "ml/a")},
			cordon,
			func(c *card) {
				*c = card{mode: native, wanted: shared, checked: true, looked: true, withdrawn: true, holders: []string{"ml/a"}}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := base
			if tt.card != nil {
				tt.card(&c)
			}
			tt.see.at = now
			got := see(c, &tt.see, tt.how)
			want := base
			if tt.card != nil {
				tt.card(&want)
			}
			want.quiet = time.Time{}
			if tt.want != nil {
				tt.want(&want)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(card{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAim(t *testing.T) {
	free := card{mode: native, wanted: native, checked: true}
	held := card{mode: native, wanted: shared, checked: true, looked: true, withdrawn: true, holders: []string{"ml/a"}}
	for _, tt := range []struct {
		name   string
		card   card
		wanted config.Mode
		how    config.ModeSwitch
		want   card
	}{
		{"nothing new", free, native, cordon, free},
		{"a switch: nobody new at once", free, shared, cordon, card{mode: native, wanted: shared, checked: true, withdrawn: true}},
		{"a switch with patience: first see who holds it", free, shared, wait, card{mode: native, wanted: shared, checked: true}},
		{"the mind is changed back", held, native, cordon, free},
		{"patience from now on", held, shared, wait, card{mode: native, wanted: shared, checked: true, looked: true, holders: []string{"ml/a"}}},
		{"not known yet", card{}, shared, cordon, card{wanted: shared}},
		{
			"it has just moved",
			card{mode: shared, wanted: shared, checked: true, writing: true},
			native, cordon,
			card{mode: shared, wanted: native, checked: true, writing: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, aim(tt.card, tt.wanted, tt.how), cmp.AllowUnexported(card{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWords(t *testing.T) {
	for _, tt := range []struct {
		name           string
		card           card
		until, against string
	}{
		{"as configured", card{mode: native, wanted: native}, "", ""},
		{
			"one holder",
			card{mode: native, wanted: shared, withdrawn: true, looked: true, holders: []string{"ml/a"}},
			"ml/a ends", "moves to sgpu when ml/a ends",
		},
		{"two, with patience", card{mode: shared, wanted: native, looked: true, holders: []string{"ml/a", "ml/b"}}, "ml/a and ml/b end", ""},
		{
			"three",
			card{mode: shared, wanted: native, looked: true, holders: []string{"a/a", "b/b", "c/c"}},
			"a/a, b/b and c/c end", "",
		},
		{
			"five",
			card{mode: shared, wanted: native, looked: true, holders: []string{"a/a", "b/b", "c/c", "d/d", "e/e"}},
			"a/a, b/b, c/c and 2 more end", "",
		},
		{
			"free",
			card{mode: native, wanted: shared, withdrawn: true, looked: true},
			"the kubelet no longer offers it", "moves to sgpu when the kubelet no longer offers it",
		},
		{"not known", card{wanted: shared}, "it is known who holds it", ""},
		{"being written", card{mode: shared, wanted: shared, writing: true}, "its mode is on disk", ""},
		{
			"not written",
			card{mode: native, wanted: shared, withdrawn: true, looked: true, stuck: true},
			"its mode is on disk", "moves to sgpu when its mode is on disk",
		},
		{
			"held twice",
			card{mode: native, wanted: native, withdrawn: true, others: []string{"ml/b"}},
			"", "held as sgpu too, until ml/b ends",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if until, against := tt.card.until(), tt.card.against(); until != tt.until || against != tt.against {
				t.Errorf("until %q, want %q; against %q, want %q", until, tt.until, against, tt.against)
			}
		})
	}
}
