package gpumode

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
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
	// observed reports whether the last observation succeeded.
	observed bool
	// holders hold it in mode, sorted; others in another one, which is otherMode.
	holders, others []string
	otherMode       config.Mode
}

// usage is the part of an observation about one GPU. offered and held are keyed by mode.
type usage struct {
	asked   time.Time
	offered map[config.Mode]bool
	held    map[config.Mode][]string
}

// others returns the holders of a GPU in another mode than m, and that mode; the mode of the first
// holders if there are several.
func (u *usage) others(m config.Mode) (holders []string, in config.Mode) {
	for _, mode := range []config.Mode{config.ModeNative, config.ModeSGPU, config.ModeClaims} {
		if mode == m || len(u.held[mode]) == 0 {
			continue
		}
		if in == "" {
			in = mode
		}
		for _, pod := range u.held[mode] {
			holders = insert(holders, pod)
		}
	}
	return holders, in
}

// pending reports whether observations are needed.
func (g *gpuState) pending() bool {
	return g.mode == "" || !g.checked || g.mode != g.wanted || len(g.others) > 0
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
	switch g.mode {
	case "":
	case wanted:
		g.observed, g.holders, g.freeSince = false, nil, time.Time{}
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
		g.mode, g.checked = u.confirmed(cmp.Or(g.mode, g.wanted)), true
	}
	g.holders = u.held[g.mode]
	g.others, g.otherMode = u.others(g.mode)
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

// confirmed returns the mode of a GPU that was not compared with its holders yet: the recorded
// one, unless only another one has holders.
func (u *usage) confirmed(recorded config.Mode) config.Mode {
	if _, held := u.others(recorded); held != "" && len(u.held[recorded]) == 0 {
		return held
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
	case !g.observed:
		return "it is known who holds it"
	case g.mode == config.ModeClaims:
		return "its ResourceSlice says so"
	}
	return "the kubelet no longer offers it"
}

// unavailable returns why no new pod gets the GPU, or an empty string.
func (g *gpuState) unavailable() string {
	switch {
	case g.phase == open:
		return ""
	case g.mode == g.wanted:
		return fmt.Sprintf("held as %s too, until %s", g.otherMode, ends(g.others))
	}
	return fmt.Sprintf("moves to %s when %s", g.wanted, g.until())
}

// maxNamed bounds the pods named in a text.
const maxNamed = 3

// ends returns "a ends", "a, b end", "a, b, c and 2 more end".
func ends(pods []string) string {
	switch n := len(pods); {
	case n == 1:
		return pods[0] + " ends"
	case n > maxNamed:
		return fmt.Sprintf("%s and %d more end", strings.Join(pods[:maxNamed], ", "), n-maxNamed)
	}
	return strings.Join(pods, ", ") + " end"
}

// insert puts a name into a sorted list, once.
func insert(list []string, name string) []string {
	at, found := slices.BinarySearch(list, name)
	if found {
		return list
	}
	return slices.Insert(list, at, name)
}

// every is the time between observations while a mode is pending: each asks the kubelet
// twice, which admits 100 questions a second of all callers.
const every = 300 * time.Millisecond

// Observation is the state of devices in the kubelet.
type Observation struct {
	// Asked is the time of the first query.
	Asked time.Time
	// Offered are the devices that the kubelet may give to the next pod. They were asked
	// for before Held.
	Offered []inventory.Held
	// Held are devices that pods hold, that a call of Allocate in flight is for, or that a
	// finished call allocated and the kubelet does not report yet. Calls were looked at before pods. A
	// container that is bound to another GPU than its device ID names holds both.
	Held []inventory.Held
	// Err is set if the offered and held devices are unknown.
	Err error
}

// Observe takes an observation, and writes modes that change. It returns when to observe
// again, zero if nothing is pending.
func (t *Tracker) Observe(o *Observation) (again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config == nil {
		return 0
	}
	before := maps.Clone(t.gpus)
	if o.Err != nil {
		t.log.Debug("holders of GPUs are not known", "err", o.Err)
		for uuid, g := range t.gpus {
			g.freeSince = time.Time{} // Nothing counts as free until one succeeds again.
			t.gpus[uuid] = g
		}
	} else {
		t.decide(o)
	}
	if !maps.EqualFunc(before, t.gpus, func(a, b gpuState) bool { return a.same(&b) }) {
		t.changed.Notify()
	}
	t.observing = t.unsaved || t.some((*gpuState).pending)
	if !t.observing {
		return 0
	}
	return every
}

// decide takes the next step of every GPU that is pending. A mode changes once it is on
// disk.
func (t *Tracker) decide(o *Observation) {
	moving := map[string]config.Mode{}
	for uuid, u := range t.usages(o) {
		old := t.gpus[uuid]
		if !old.pending() {
			continue
		}
		now, moves := observe(old, u)
		t.gpus[uuid] = now
		switch {
		case moves:
			moving[uuid] = now.wanted
		case now.mode != old.mode:
			t.unsaved = true
			if old.mode != "" {
				t.log.Warn("GPU is held in another mode than recorded", "uuid", uuid,
					"recorded", string(old.mode), "held_as", string(now.mode), "by", now.holders)
			}
		}
	}
	if len(moving) == 0 && !t.unsaved {
		return
	}
	err := t.save(moving)
	t.faults.Note(FaultSaving, err)
	t.unsaved = err != nil
	for uuid, to := range moving {
		g := t.gpus[uuid]
		if err != nil {
			g.enter(draining)
		} else {
			t.log.Info("GPU mode changes", "uuid", uuid, "from", string(g.mode), "to", string(to))
			g = configure(gpuState{mode: to, checked: true}, g.wanted)
		}
		t.gpus[uuid] = g
	}
}

// usages sorts an observation by GPU of the machine.
func (t *Tracker) usages(o *Observation) map[string]*usage {
	all := map[string]*usage{}
	for _, p := range t.present {
		all[p.UUID] = &usage{asked: o.Asked, offered: map[config.Mode]bool{}, held: map[config.Mode][]string{}}
	}
	for _, d := range o.Offered {
		if uuid, mode := t.gpuOf(d); all[uuid] != nil {
			all[uuid].offered[mode] = true
		}
	}
	for _, h := range o.Held {
		if uuid, mode := t.gpuOf(h); all[uuid] != nil {
			all[uuid].held[mode] = insert(all[uuid].held[mode], h.Pod)
		}
	}
	return all
}

// gpuOf returns the GPU that a device is of, and the mode in which it is. Other device plugins
// have replicas of exclusive GPUs too, under the same resource.
func (t *Tracker) gpuOf(d inventory.Held) (uuid string, mode config.Mode) {
	uuid = inventory.DeviceOf(d.ID)
	if d.Resource == claims.Driver {
		return cmp.Or(t.machine.ParentGPU(uuid), uuid), config.ModeClaims
	}
	if inventory.IsReplica(d.ID) && d.Resource != t.config.Resources.GPU || d.Resource == t.config.Resources.SGPU {
		return uuid, config.ModeSGPU
	}
	return cmp.Or(t.machine.ParentGPU(uuid), uuid), config.ModeNative
}
