package mode

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
)

// settle is how long the kubelet must have neither offered a card nor known a
// holder until it moves. A kubelet that chose it before it heard of the
// withdrawal calls Allocate within that time; one that is later is refused.
const settle = 500 * time.Millisecond

// card is what is known of one card. What is decided about it is pure.
type card struct {
	// mode is how the card is handed out, empty while nobody knows; wanted is
	// what the configuration says.
	mode, wanted config.Mode
	// checked tells whether a look at the holders has confirmed mode.
	checked bool
	// withdrawn: nobody new gets it. turn numbers the withdrawal, told is when
	// the resources had been told of it, zero before.
	withdrawn bool
	turn      uint64
	told      time.Time
	// quiet is since when it has been free; zero if it is not.
	quiet time.Time
	// writing: its mode is on the way to the disk; until then nobody gets it.
	writing bool
	// looked tells whether the last look succeeded, stuck whether the mode could
	// not be written.
	looked, stuck bool
	// holders hold it in mode, others in the other mode, sorted.
	holders, others []string
}

// sight is what a look says of one card.
type sight struct {
	at time.Time
	// offered and held are by mode.
	offered map[config.Mode]bool
	held    map[config.Mode][]string
	// allocating tells whether a call of Allocate is in flight for it, and
	// binding is when the oldest call of PreStart in flight began, by mode.
	allocating bool
	binding    map[config.Mode]time.Time
}

func other(m config.Mode) config.Mode {
	if m == config.ModeSGPU {
		return config.ModeNative
	}
	return config.ModeSGPU
}

// pending tells whether looks are needed.
func (c *card) pending() bool {
	return c.mode == "" || !c.checked || c.mode != c.wanted || len(c.others) > 0
}

// same tells whether two are alike in what others are told.
func (c *card) same(d *card) bool {
	return c.mode == d.mode && c.wanted == d.wanted && c.withdrawn == d.withdrawn && c.writing == d.writing &&
		c.checked == d.checked && c.until() == d.until() && c.against() == d.against()
}

// aim takes what the configuration wants. A change of mind returns the card at
// once, if it has not moved.
func aim(c card, wanted config.Mode, how config.ModeSwitch) card {
	c.wanted = wanted
	switch {
	case c.mode == "" || c.writing:
	case c.mode == wanted:
		c.withdrawn, c.quiet = len(c.others) > 0, time.Time{}
		c.looked, c.stuck, c.holders = false, false, nil
	case how != config.ModeSwitchWait:
		c.withdrawn = true
	case len(c.holders) > 0:
		c.withdrawn, c.quiet = false, time.Time{}
	}
	return c
}

// see takes a look. A card whose mode is another afterwards has moved, but for
// the writing of it.
func see(c card, s *sight, how config.ModeSwitch) card {
	if c.writing {
		return c
	}
	c.looked = true
	if !c.checked {
		c.mode, c.checked = settled(c.mode, c.wanted, s.held), true
	}
	c.holders, c.others = s.held[c.mode], s.held[other(c.mode)]
	free := len(c.holders) == 0
	switch {
	case c.mode == c.wanted:
		c.withdrawn, c.quiet = len(c.others) > 0, time.Time{}
	case !free && how == config.ModeSwitchWait:
		c.withdrawn, c.quiet = false, time.Time{}
	case !free || !c.withdrawn || c.told.IsZero() || s.taken(&c):
		c.withdrawn, c.quiet = true, time.Time{}
	case c.quiet.IsZero():
		c.quiet = s.at
	case s.at.Sub(c.quiet) >= settle:
		c.mode, c.writing = c.wanted, true
		c.withdrawn, c.quiet = false, time.Time{}
		c.looked, c.stuck, c.holders, c.others = false, false, nil, nil
	}
	return c
}

// taken tells whether somebody may still get the card: the kubelet offers it,
// or a call is in flight that began before everybody knew.
func (s *sight) taken(c *card) bool {
	began, binding := s.binding[c.mode]
	return s.offered[c.mode] || s.allocating || binding && !began.After(c.told)
}

// settled is the mode of a card that nobody has compared with its holders yet:
// the recorded one, unless only the other has holders; without a record the
// holders', and without any the wanted one.
func settled(recorded, wanted config.Mode, held map[config.Mode][]string) config.Mode {
	if recorded == "" {
		recorded = wanted
	}
	if len(held[recorded]) == 0 && len(held[other(recorded)]) > 0 {
		return other(recorded)
	}
	return recorded
}

// back undoes a move that could not be written.
func back(c card) card {
	c.mode, c.writing, c.withdrawn, c.stuck = other(c.mode), false, true, true
	return c
}

// maxNamed is how many pods a text names.
const maxNamed = 3

// until is what a change of mode waits for; empty if there is none.
func (c *card) until() string {
	switch {
	case c.mode == c.wanted && !c.writing:
		return ""
	case len(c.holders) > 0:
		return ends(c.holders)
	case c.writing, c.stuck:
		return "its mode is on disk"
	case !c.looked:
		return "it is known who holds it"
	}
	return "the kubelet no longer offers it"
}

// against is why nobody new gets the card; empty if somebody may.
func (c *card) against() string {
	switch {
	case !c.withdrawn:
		return ""
	case c.mode == c.wanted:
		return fmt.Sprintf("held as %s too, until %s", other(c.mode), ends(c.others))
	}
	return fmt.Sprintf("moves to %s when %s", c.wanted, c.until())
}

// ends says that pods end: "a ends", "a and b end", "a, b, c and 2 more end".
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

// add puts a name into a sorted list, once.
func add(list []string, name string) []string {
	at, there := slices.BinarySearch(list, name)
	if there {
		return list
	}
	return slices.Insert(list, at, name)
}
