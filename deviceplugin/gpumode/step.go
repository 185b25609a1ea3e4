package gpumode

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
)

// freeFor is the time for which the kubelet must neither offer a GPU nor know a holder before the
// GPU leaves its resource. A kubelet that chose the GPU before it received the withdrawal calls
// Allocate within that time; a later call is rejected.
const freeFor = 500 * time.Millisecond

// phase is a step of a GPU's change of mode.
type phase int

const (
	// open: new pods get the GPU.
	open phase = iota
	// draining: it is listed as unhealthy. A call of Allocate for it is still accepted.
	draining
	// leaving: it is in no resource, and calls for it are rejected. If none was under way
	// when that began to hold, its mode changes.
	leaving
)

// gpuState is the known state of one GPU. Decisions about it are pure.
type gpuState struct {
	// mode is the GPU's current mode, empty while unknown; wanted is the configured mode.
	mode, wanted config.Mode
	// checked reports whether an observation of the holders has confirmed mode.
	checked bool
	phase   phase
	// shown is since when the resources follow phase, zero before that. freeSince is since
	// when a draining GPU has been free, zero if it is not.
	shown, freeSince time.Time
	// observed reports whether the last observation succeeded, unwritten whether the
	// next mode could not be written.
	observed, unwritten bool
	// holders hold it in mode, others in the other mode, sorted.
	holders, others []string
}

// usage is the part of an observation about one GPU. offered and held are by mode.
type usage struct {
	asked   time.Time
	offered map[config.Mode]bool
	held    map[config.Mode][]string
}

func other(m config.Mode) config.Mode {
	if m == config.ModeSGPU {
		return config.ModeNative
	}
	return config.ModeSGPU
}

// pending reports whether observations are needed.
func (g *gpuState) pending() bool {
	return g.mode == "" || !g.checked || g.mode != g.wanted || len(g.others) > 0
}

// moving reports whether it changes its mode and waits for no pod to end.
func (g *gpuState) moving() bool {
	return g.observed && g.phase != open && !g.unwritten && g.mode != g.wanted && len(g.holders) == 0
}

// same reports whether two states look the same from outside.
func (g *gpuState) same(h *gpuState) bool {
	return g.mode == h.mode && g.wanted == h.wanted && g.phase == h.phase && g.checked == h.checked &&
		g.until() == h.until() && g.unavailable() == h.unavailable()
}

// enter changes the phase.
func (g *gpuState) enter(next phase) {
	if next != draining || len(g.holders) > 0 {
		g.freeSince = time.Time{}
	}
	if next != g.phase {
		g.phase, g.shown = next, time.Time{}
	}
}

// configure takes the configured mode. A GPU that has not changed its mode yet is open again at
// once if its mode is wanted again.
func configure(g gpuState, wanted config.Mode) gpuState {
	g.wanted = wanted
	switch {
	case g.mode == "":
	case g.mode == wanted:
		g.observed, g.unwritten, g.holders, g.freeSince = false, false, nil, time.Time{}
		g.enter(map[bool]phase{false: open, true: draining}[len(g.others) > 0])
	default:
		g.enter(max(g.phase, draining))
	}
	return g
}

// observe takes an observation. moves reports that the mode becomes the wanted one.
func observe(g gpuState, u *usage) (next gpuState, moves bool) {
	g.observed = true
	if !g.checked {
		g.mode, g.checked = confirmed(g.mode, g.wanted, u.held), true
	}
	g.holders, g.others = u.held[g.mode], u.held[other(g.mode)]
	free := len(g.holders) == 0 && !u.offered[g.mode]
	switch {
	case g.mode == g.wanted && len(g.others) == 0:
		g.enter(open)
	case g.mode == g.wanted, g.phase == open:
		g.enter(draining)
	case !free:
		g.freeSince = time.Time{}
		g.enter(draining)
	case g.shown.IsZero() || !g.shown.Before(u.asked):
		// What was asked before the resources followed shows nothing.
	case g.phase == leaving:
		moves = true
	case g.freeSince.IsZero():
		g.freeSince = u.asked
	case u.asked.Sub(g.freeSince) >= freeFor:
		g.enter(leaving)
	}
	return g, moves
}

// moved returns the state of a GPU with its next mode on disk.
func moved(g gpuState, to config.Mode) gpuState {
	return configure(gpuState{mode: to, checked: true}, g.wanted)
}

// confirmed returns the mode of a GPU that was not compared with its holders yet: the recorded
// one, unless only the other has holders; without a record the wanted one.
func confirmed(recorded, wanted config.Mode, held map[config.Mode][]string) config.Mode {
	if recorded == "" {
		recorded = wanted
	}
	if len(held[recorded]) == 0 && len(held[other(recorded)]) > 0 {
		return other(recorded)
	}
	return recorded
}

// until describes what a change of mode waits for; empty without one.
func (g *gpuState) until() string {
	switch {
	case g.mode == g.wanted:
		return ""
	case len(g.holders) > 0:
		return ends(g.holders)
	case g.unwritten:
		return "its mode is on disk"
	case !g.observed:
		return "it is known who holds it"
	}
	return "the kubelet no longer offers it"
}

// unavailable returns why no new pod gets the GPU, or an empty string.
func (g *gpuState) unavailable() string {
	switch {
	case g.phase == open:
		return ""
	case g.mode == g.wanted:
		return fmt.Sprintf("held as %s too, until %s", other(g.mode), ends(g.others))
	}
	return fmt.Sprintf("moves to %s when %s", g.wanted, g.until())
}

// maxNamed bounds the pods named in a text.
const maxNamed = 3

// ends returns "a ends", "a and b end", "a, b, c and 2 more end".
func ends(pods []string) string {
	switch n := len(pods); {
	case n == 1:
		return pods[0] + " ends"
	case n > maxNamed:
		return fmt.Sprintf("%s and %d more end", strings.Join(pods[:maxNamed], ", "), n-maxNamed)
	default:
		return strings.Join(pods[:n-1], ", ") + " and " + pods[n-1] + " end"
	}
}

// insert puts a name into a sorted list, once.
func insert(list []string, name string) []string {
	at, found := slices.BinarySearch(list, name)
	if found {
		return list
	}
	return slices.Insert(list, at, name)
}
