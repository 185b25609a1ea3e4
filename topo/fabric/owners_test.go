package fabric

import (
	"math/rand/v2"
	"testing"
)

// The table says what Go's map would, whatever comes and goes, also where GUIDs
// crowd: half of those here want the same few places.
func TestOwners(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	nodes := make([]record, 5)
	var table owners
	want := map[uint64]*record{}
	crowd := func() uint64 {
		table.reserve(1)
		for {
			if guid := rng.Uint64(); guid != 0 && table.home(guid) < 3 || table.home(guid) == len(table.slots)-1 {
				return guid
			}
		}
	}
	var known []uint64
	for range 20000 {
		guid := uint64(rng.IntN(400) + 1)
		switch {
		case len(known) < 40:
			known = append(known, crowd())
			guid = known[len(known)-1]
		case rng.IntN(2) == 0:
			guid = known[rng.IntN(len(known))]
		}
		r := &nodes[rng.IntN(len(nodes))]
		switch rng.IntN(3) {
		case 0:
			if want[guid] == nil {
				want[guid] = r
			}
			if got := table.claim(guid, r); got != want[guid] {
				t.Fatalf("claim of %x: %p, want %p", guid, got, want[guid])
			}
		case 1:
			if want[guid] == r {
				delete(want, guid)
			}
			table.release(guid, r)
		default:
			if want[guid] != nil {
				want[guid] = r
				table.give(guid, r)
			}
		}
		if table.used != len(want) {
			t.Fatalf("%d are used, want %d", table.used, len(want))
		}
	}
	for guid, r := range want {
		if got := table.claim(guid, &record{}); got != r {
			t.Errorf("%x is %p's, want %p", guid, got, r)
		}
	}
}
