package mode

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

const (
	// poll is the time between looks while a card is on its way, and slow the
	// longest one while all that are pending wait for pods to end: each look
	// asks the kubelet twice, which admits 100 questions a second of everybody.
	poll = 100 * time.Millisecond
	slow = time.Second
	// lookTimeout bounds one look.
	lookTimeout = 2 * time.Second
	// renew is the least time between two checkpoints that are written for us:
	// an ordinary init container, which only the checkpoint has, may run long.
	renew = 5 * time.Second
)

// slot is between the UUID and the number of a share's device ID.
const slot = "::"

// Run looks at the kubelet's accounts while a card is pending, until ctx ends.
func (t *Tracker) Run(ctx context.Context) error {
	pause := poll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		var tick <-chan time.Time
		if t.unsettled() {
			timer.Reset(pause)
			tick = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.wake:
			pause = poll
		case <-tick:
			pause = min(2*pause, slow)
		}
		if t.unsettled() && t.look(ctx) {
			pause = poll
		}
	}
}

// unsettled tells whether there is something to do.
func (t *Tracker) unsettled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.machine == nil {
		return false
	}
	for i := range t.machine.GPUs {
		if c := t.cards[t.machine.GPUs[i].UUID]; t.machine.GPUs[i].UUID != "" && c.pending() {
			return true
		}
	}
	return t.unsaved
}

// look asks the kubelet, and decides. It reports whether a card is on its way,
// so that the next look should come soon.
func (t *Tracker) look(ctx context.Context) (soon bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	// Who got a card while it was offered is a holder, or a call in flight, by
	// the time that it is not: so the order of these questions matters.
	offered, err := t.options.Kubelet.Offered(ctx)
	var held []Held
	if err == nil {
		held, err = t.options.Kubelet.Held(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := maps.Clone(t.cards)
	if err != nil {
		t.options.Log.DebugContext(ctx, "it is not known who holds the cards", "err", err)
		t.blindLocked()
	} else {
		t.decideLocked(t.sights(offered, held))
		t.renewLocked(held)
	}
	t.save()
	if !maps.EqualFunc(before, t.cards, func(a, b card) bool { return a.same(&b) }) {
		t.changed.Notify()
		return true
	}
	return t.moving()
}

// blindLocked notes that a look failed: nothing counts as free until one
// succeeds again.
func (t *Tracker) blindLocked() {
	for uuid, c := range t.cards {
		c.quiet = time.Time{}
		t.cards[uuid] = c
	}
}

func (t *Tracker) decideLocked(sights map[string]*sight) {
	for uuid, s := range sights {
		old := t.cards[uuid]
		if !old.pending() {
			continue
		}
		now := see(old, s, t.config.SGPU.ModeSwitch)
		t.turn(&old, &now)
		t.cards[uuid] = now
		if now.mode == old.mode {
			continue
		}
		t.unsaved = true
		switch {
		case now.writing:
			t.options.Log.Info("card moves", "uuid", uuid, "from", string(old.mode), "to", string(now.mode))
		case old.mode != "":
			t.options.Log.Warn("card is held in another mode than was recorded", "uuid", uuid,
				"recorded", string(old.mode), "held_as", string(now.mode), "by", now.holders)
		}
	}
}

// renewLocked has doubts cleared up about who holds a card that waits for it.
func (t *Tracker) renewLocked(held []Held) {
	for _, h := range held {
		uuid, _ := t.cardOf(h.Device)
		if c, known := t.cards[uuid]; h.Doubtful && known && c.pending() && time.Since(t.renewed) >= renew {
			t.renewed = time.Now()
			t.options.Kubelet.Renew()
		}
	}
}

// sights sorts the kubelet's account by card, for the cards of the machine.
func (t *Tracker) sights(offered []Device, held []Held) map[string]*sight {
	now := time.Now()
	binding := map[config.Mode]time.Time{}
	for _, b := range t.binding {
		if oldest, ok := binding[b.mode]; !ok || b.began.Before(oldest) {
			binding[b.mode] = b.began
		}
	}
	all := map[string]*sight{}
	for i := range t.machine.GPUs {
		if uuid := t.machine.GPUs[i].UUID; uuid != "" {
			all[uuid] = &sight{
				at: now, offered: map[config.Mode]bool{}, held: map[config.Mode][]string{},
				allocating: t.allocating[uuid] > 0, binding: binding,
			}
		}
	}
	for _, d := range offered {
		if uuid, mode := t.cardOf(d); all[uuid] != nil {
			all[uuid].offered[mode] = true
		}
	}
	for _, h := range held {
		if uuid, mode := t.cardOf(h.Device); all[uuid] != nil {
			all[uuid].held[mode] = add(all[uuid].held[mode], h.By)
		}
	}
	return all
}

// cardOf is the card that a device is of, and the mode in which it is. Other
// device plugins have slots of whole GPUs too, under the same resource.
func (t *Tracker) cardOf(d Device) (uuid string, mode config.Mode) {
	uuid, _, share := strings.Cut(d.ID, slot)
	if share && d.Resource != t.config.Resources.GPU || d.Resource == t.config.Resources.SGPU {
		return uuid, config.ModeSGPU
	}
	if parent := t.machine.ParentGPU(uuid); parent != "" {
		uuid = parent
	}
	return uuid, config.ModeNative
}

// moving tells whether a card is withdrawn and waits for no pod to end.
func (t *Tracker) moving() bool {
	return slices.ContainsFunc(t.machine.GPUs, func(g machine.GPU) bool {
		c := t.cards[g.UUID]
		return c.looked && c.withdrawn && !c.stuck && c.mode != c.wanted && len(c.holders) == 0
	})
}
