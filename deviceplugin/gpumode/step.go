package gpumode

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
)

// freeFor is how long the kubelet must have neither offered a GPU nor known a
// holder until its mode changes. A kubelet that chose it before it received the
// withdrawal calls Allocate within that time; a later call is rejected.
const freeFor = 500 * time.Millisecond

// gpuState is what is known of one GPU. What is decided about it is pure.
type gpuState struct {
	// mode is how the GPU is handed out, empty while it is not known; wanted is
	// what the configuration asks for.
	mode, wanted config.Mode
	// checked reports whether an observation of the holders has confirmed mode.
	checked bool
	// draining: no new pod gets it. withdrawal numbers that, published is when
	// the lists of the resources had it, zero before.
	draining   bool
	withdrawal uint64
	published  time.Time
	// freeSince is since when it has been free; zero if it is not.
	freeSince time.Time
	// writing: its mode is being written to the disk; until then no pod gets it.
	writing bool
	// observed reports whether the last observation succeeded, unwritten whether the
	// mode could not be written.
	observed, unwritten bool
	// holders hold it in mode, others in the other mode, sorted.
	holders, others []string
}

// usage is what an observation shows of one GPU.
type usage struct {
	at time.Time
	// offered and held are by mode.
	offered map[config.Mode]bool
	held    map[config.Mode][]string
	// allocating reports whether a call of Allocate is in flight for it, and
	// starting is when the oldest call of PreStart in flight began, by mode.
	allocating bool
	starting   map[config.Mode]time.Time
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

// moving reports whether it is draining and waits for no pod to end.
func (g *gpuState) moving() bool {
	return g.observed && g.draining && !g.unwritten && g.mode != g.wanted && len(g.holders) == 0
}

// same reports whether two states look the same from outside.
func (g *gpuState) same(h *gpuState) bool {
	return g.mode == h.mode && g.wanted == h.wanted && g.draining == h.draining && g.writing == h.writing &&
		g.checked == h.checked && g.until() == h.until() && g.unavailable() == h.unavailable()
}

// configure takes what the configuration wants. A GPU whose mode has not changed
// yet stays at once if its mode is wanted again.
func configure(g gpuState, wanted config.Mode, how config.ModeSwitch) gpuState {
	g.wanted = wanted
	switch {
	case g.mode == "" || g.writing:
	case g.mode == wanted:
		g.draining, g.freeSince = len(g.others) > 0, time.Time{}
		g.observed, g.unwritten, g.holders = false, false, nil
	case how != config.ModeSwitchWait:
		g.draining = true
	case len(g.holders) > 0:
		g.draining, g.freeSince = false, time.Time{}
	}
	return g
}

// observe takes an observation. A GPU whose mode is another afterwards has
// changed it, but for the writing of it.
func observe(g gpuState, u *usage, how config.ModeSwitch) gpuState {
	if g.writing {
		return g
	}
	g.observed = true
	if !g.checked {
		g.mode, g.checked = confirmed(g.mode, g.wanted, u.held), true
	}
	g.holders, g.others = u.held[g.mode], u.held[other(g.mode)]
	free := len(g.holders) == 0
	switch {
	case g.mode == g.wanted:
		g.draining, g.freeSince = len(g.others) > 0, time.Time{}
	case !free && how == config.ModeSwitchWait:
		g.draining, g.freeSince = false, time.Time{}
	case !free || !g.draining || g.published.IsZero() || u.mayBeTaken(&g):
		g.draining, g.freeSince = true, time.Time{}
	case g.freeSince.IsZero():
		g.freeSince = u.at
	case u.at.Sub(g.freeSince) >= freeFor:
		g.mode, g.writing = g.wanted, true
		g.draining, g.freeSince = false, time.Time{}
		g.observed, g.unwritten, g.holders, g.others = false, false, nil, nil
	}
	return g
}

// mayBeTaken reports whether a pod may still get the GPU: the kubelet offers it,
// or a call is in flight that began before the withdrawal was published.
func (u *usage) mayBeTaken(g *gpuState) bool {
	began, starting := u.starting[g.mode]
	return u.offered[g.mode] || u.allocating || starting && !began.After(g.published)
}

// confirmed is the mode of a GPU that was not compared with its holders yet: the
// recorded one, unless only the other has holders; without a record the holders',
// and without any the wanted one.
func confirmed(recorded, wanted config.Mode, held map[config.Mode][]string) config.Mode {
	if recorded == "" {
		recorded = wanted
	}
	if len(held[recorded]) == 0 && len(held[other(recorded)]) > 0 {
		return other(recorded)
	}
	return recorded
}

// revert undoes a change that could not be written.
func revert(g gpuState) gpuState {
	g.mode, g.writing, g.draining, g.unwritten = other(g.mode), false, true, true
	return g
}

// until is what a change of mode waits for; empty if there is none.
func (g *gpuState) until() string {
	switch {
	case g.mode == g.wanted && !g.writing:
		return ""
	case len(g.holders) > 0:
		return ends(g.holders)
	case g.writing, g.unwritten:
		return "its mode is on disk"
	case !g.observed:
		return "it is known who holds it"
	}
	return "the kubelet no longer offers it"
}

// unavailable is why no new pod gets the GPU; empty if one can.
func (g *gpuState) unavailable() string {
	switch {
	case !g.draining:
		return ""
	case g.mode == g.wanted:
		return fmt.Sprintf("held as %s too, until %s", other(g.mode), ends(g.others))
	}
	return fmt.Sprintf("moves to %s when %s", g.wanted, g.until())
}

// maxNamed is how many pods a text names.
const maxNamed = 3

// ends is "a ends", "a and b end", "a, b, c and 2 more end".
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
	at, there := slices.BinarySearch(list, name)
	if there {
		return list
	}
	return slices.Insert(list, at, name)
}
