// Package mode says in which resource a card is now, whole (native) or in
// shares (sgpu), and when it may move to the other.
//
// It owns the modes of a node's cards, on disk and in memory, and which cards
// an operator took out (cordoned). A card moves when the kubelet no longer
// offers it in the old resource, nobody holds it, and no call is under way that
// could give it to somebody; so it is never in both resources, and what a pod
// holds is never taken from it. The package advertises nothing itself, decides
// nothing about health, and never ends a pod.
package mode

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/notify"
)

// ConditionType is the Node condition that is true while a card has another
// mode than the configuration wants.
const ConditionType = "HeddleModePending"

// Device is a device ID of a resource: a UUID, or UUID::slot for a share.
type Device struct{ Resource, ID string }

// Held is a device that a pod holds, and which pod that is.
type Held struct {
	Device
	By string
	// Doubtful tells that the pod may have ended: only a checkpoint of the
	// kubelet's has it.
	Doubtful bool
}

// Kubelet is the kubelet's account of devices. An error means that it is not
// known, never that there is nothing.
type Kubelet interface {
	// Offered are the devices that the kubelet may give to the next pod.
	Offered(ctx context.Context) ([]Device, error)
	// Held are those that pods hold, or that a call gave out which the kubelet
	// has not accounted for yet. A container that is bound to another card than
	// its device ID names holds both.
	Held(ctx context.Context) ([]Held, error)
	// Renew makes the kubelet write its checkpoint again, without pods that had
	// ended by the last time that it was asked for Held. It returns at once.
	Renew()
}

// Options are what a Tracker works with.
type Options struct {
	Kubelet Kubelet
	// StateDir is ours, on a disk.
	StateDir string
	// Log defaults to none.
	Log *slog.Logger
}

// Tracker keeps the mode of every card. Its methods may be called at once.
type Tracker struct {
	options Options
	changed notify.Signal
	wake    notify.Signal

	mu sync.Mutex // guards all below
	// cards are by UUID, also those that the machine has lost.
	cards map[string]card
	// machine and config are those of the last round; nil before it.
	machine *machine.Machine
	config  *config.NodeConfig
	// turns counts withdrawals.
	turns uint64
	// allocating counts calls of Allocate in flight, by card; binding are the
	// calls of PreStart in flight, with when each began.
	allocating map[string]int
	binding    map[uint64]bind
	calls      uint64
	// renewed is when the kubelet was made to write its checkpoint.
	renewed time.Time
	// unsaved is whether the file lacks a mode that is in use.
	unsaved bool
	// cordoned are the UUIDs that nobody new gets, uncordoned whether the file
	// lacks them.
	cordoned      map[string]bool
	cordonUnsaved bool
	// faults are what is wrong now, by what it is wrong with.
	faults map[string]string
}

// bind is a call of PreStart in flight.
type bind struct {
	mode  config.Mode
	began time.Time
}

// New makes a Tracker from what is on disk. What cannot be read is a problem
// ([Tracker.Problems]) and no error.
func New(o Options) *Tracker {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Tracker{
		options: o, changed: notify.New(), wake: notify.New(),
		cards: map[string]card{}, allocating: map[string]int{},
		binding: map[uint64]bind{}, cordoned: map[string]bool{}, faults: map[string]string{},
	}
	modes, err := loadModes(o.StateDir)
	t.note(FaultModes, err)
	for uuid, mode := range modes {
		t.cards[uuid] = card{mode: mode, wanted: mode}
	}
	uuids, err := loadCordons(o.StateDir)
	t.note(FaultCordon, err)
	for _, uuid := range uuids {
		t.cordoned[uuid] = true
	}
	return t
}

// Wanted is the mode that the configuration gives a card. A card with MIG is
// never shared.
func Wanted(c *config.NodeConfig, g *machine.GPU) config.Mode {
	if c.Shares(g) {
		return config.ModeSGPU
	}
	return config.ModeNative
}

// Round takes the machine and the configuration; neither is changed later.
// Call it before the resources look again, and told after they have.
func (t *Tracker) Round(m *machine.Machine, c *config.NodeConfig) (told func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.present()
	t.machine, t.config = m, c
	turns := map[string]uint64{}
	idle := true
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.UUID == "" {
			continue
		}
		old := t.cards[g.UUID]
		now := aim(old, Wanted(c, g), c.SGPU.ModeSwitch)
		t.turn(&old, &now)
		t.cards[g.UUID] = now
		idle = idle && (!now.pending() || before[g.UUID] && now.same(&old))
		if now.withdrawn {
			turns[g.UUID] = now.turn
		}
	}
	if !idle {
		t.wake.Notify()
	}
	return func() { t.told(turns) }
}

// present are the UUIDs of the last round's machine.
func (t *Tracker) present() map[string]bool {
	uuids := map[string]bool{}
	if t.machine != nil {
		for i := range t.machine.GPUs {
			uuids[t.machine.GPUs[i].UUID] = true
		}
	}
	return uuids
}

// turn numbers a withdrawal that is new.
func (t *Tracker) turn(old, now *card) {
	if now.withdrawn && !old.withdrawn {
		t.turns++
		now.turn, now.told = t.turns, time.Time{}
	}
}

// told notes that the resources have been told of these withdrawals.
func (t *Tracker) told(turns map[string]uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for uuid, turn := range turns {
		if c := t.cards[uuid]; c.withdrawn && c.turn == turn && c.told.IsZero() {
			c.told = time.Now()
			t.cards[uuid] = c
		}
	}
}

// Changed receives when an answer of the Tracker may differ. It has room for
// one.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Known tells whether the modes of all cards are known. They are not on the
// first start of all, until it is known who holds what.
func (t *Tracker) Known() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.machine != nil && !slices.ContainsFunc(t.machine.GPUs, func(g machine.GPU) bool {
		return g.UUID != "" && t.cards[g.UUID].mode == ""
	})
}

// Any tells whether a card of the machine is in a mode now, or was when the
// machine still had it.
func (t *Tracker) Any(in config.Mode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.cards {
		if c.mode == in {
			return true
		}
	}
	return false
}

// Native tells whether a card is handed out whole now, or as the MIG devices
// that it is cut into, and why nobody new gets it; empty if somebody may.
func (t *Tracker) Native(g *machine.GPU) (native bool, against string) {
	return t.offer(g, config.ModeNative)
}

// Shared tells whether a card is handed out in shares now, and why nobody new
// gets any; empty if somebody may.
func (t *Tracker) Shared(g *machine.GPU) (shared bool, against string) {
	return t.offer(g, config.ModeSGPU)
}

// Leaving tells that a card is withheld only because its mode is to change.
func (t *Tracker) Leaving(g *machine.GPU) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cards[g.UUID]
	return c.withdrawn && c.mode != c.wanted && !c.writing && !t.cordoned[g.UUID]
}

func (t *Tracker) offer(g *machine.GPU, in config.Mode) (is bool, against string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.cards[g.UUID]
	switch {
	case c.mode != in || c.writing:
		return false, ""
	case t.cordoned[g.UUID]:
		return true, Cordoned
	}
	return true, c.against()
}

// Cordoned is why nobody new gets a card that an operator took out.
const Cordoned = "cordoned"

// Card is how one card is handed out.
type Card struct {
	// Index is the driver's number of it.
	Index int
	UUID  string
	// Mode is how it is handed out now, empty while that is not known; Wanted
	// is what the configuration says.
	Mode, Wanted config.Mode
	// Until is what a change of mode waits for, such as "default/train ends";
	// empty if there is none.
	Until    string
	Cordoned bool
	// Offered is the mode in which it is offered: Mode, or empty while a change
	// is being written.
	Offered config.Mode
	// Unavailable is why no new pod gets it, empty if one can; Draining tells
	// that it is so only because its mode is to change.
	Unavailable string
	Draining    bool
}

// Cards are those of the machine, in its order.
func (t *Tracker) Cards() []Card {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cardsLocked()
}

func (t *Tracker) cardsLocked() []Card {
	if t.machine == nil {
		return nil
	}
	cards := make([]Card, 0, len(t.machine.GPUs))
	for i := range t.machine.GPUs {
		g := &t.machine.GPUs[i]
		if g.UUID == "" {
			continue
		}
		c := t.cards[g.UUID]
		now := Card{
			Index: g.Index, UUID: g.UUID, Mode: c.mode, Wanted: c.wanted, Until: c.until(), Cordoned: t.cordoned[g.UUID],
			Offered: c.mode, Unavailable: c.against(), Draining: c.withdrawn && c.mode != c.wanted && !t.cordoned[g.UUID],
		}
		switch {
		case c.writing:
			now.Offered, now.Unavailable, now.Draining = "", "", false
		case now.Cordoned:
			now.Unavailable = Cordoned
		}
		cards = append(cards, now)
	}
	return cards
}

// What can be wrong.
const (
	// FaultModes is the file of modes as it was read, FaultSaving a file of ours
	// that cannot be written.
	FaultModes  = "modes"
	FaultSaving = "modes-file"
	// FaultCordon is what says which cards are cordoned, FaultCordonSaving our
	// file of that.
	FaultCordon       = "cordon"
	FaultCordonSaving = "cordon-file"
)

// Problems are what is wrong now, by what it is wrong with.
func (t *Tracker) Problems() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.faults)
}

// note keeps what is wrong with something, or that nothing is any more. Hold
// mu, but in New.
func (t *Tracker) note(name string, err error) {
	old := t.faults[name]
	switch {
	case err == nil && old != "":
		delete(t.faults, name)
		t.options.Log.Info("well again", "with", name)
	case err != nil && err.Error() != old:
		t.faults[name] = err.Error()
		t.options.Log.Warn("trouble", "with", name, "err", err)
	}
}
