package gpumode

import (
	"maps"
	"time"

	"github.com/heddle-dev/heddle/api/config"
)

const (
	// fast is the time between observations while a mode is about to change, and
	// slow the longest one while all that are pending wait for pods to end: each
	// asks the kubelet twice, which admits 100 questions a second of all callers.
	fast = 100 * time.Millisecond
	slow = time.Second
	// renewEvery is the least time between two checkpoints that the kubelet is
	// made to write: an ordinary init container, which only the checkpoint has,
	// may run long.
	renewEvery = 5 * time.Second
)

// Device is a device ID of a resource: a UUID, or UUID::number for a share.
type Device struct{ Resource, ID string }

// Held is a device that a pod holds, and which pod that is.
type Held struct {
	Device
	By string
	// Unverified means that the pod may have ended: only the kubelet's checkpoint
	// has it.
	Unverified bool
}

// Observation is what the kubelet reports of devices.
type Observation struct {
	// Offered are the devices that the kubelet may give to the next pod. They were
	// asked for before Held: what a pod got while it was offered is held, or in a
	// call in flight, by the time that it is not.
	Offered []Device
	// Held are those that pods hold, or that a call gave out which the kubelet has
	// not accounted for yet. A container that is bound to another GPU than its
	// device ID names holds both.
	Held []Held
	// Err: it is not known what is offered and held.
	Err error
}

// Observe takes an observation, and writes modes that change. It returns when to
// observe again, zero if nothing is pending; renew asks for a new checkpoint of
// the kubelet's, without pods that had ended by then.
func (t *Tracker) Observe(o *Observation) (again time.Duration, renew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.config == nil {
		return 0, false
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
		renew = t.needsRenewal(o.Held)
	}
	t.save()
	changed := !maps.EqualFunc(before, t.gpus, func(a, b gpuState) bool { return a.same(&b) })
	if changed {
		t.changed.Notify()
	}
	if changed || t.some((*gpuState).moving) {
		t.pause = fast
	}
	again, t.pause = t.pause, min(2*t.pause, slow)
	if !t.unsaved && !t.some((*gpuState).pending) {
		again = 0
	}
	return again, renew
}

func (t *Tracker) decide(o *Observation) {
	for uuid, u := range t.usages(o) {
		old := t.gpus[uuid]
		if !old.pending() {
			continue
		}
		now := observe(old, u, t.config.SGPU.ModeSwitch)
		t.withdraw(&old, &now)
		t.gpus[uuid] = now
		if now.mode == old.mode {
			continue
		}
		t.unsaved = true
		switch {
		case now.writing:
			t.log.Info("GPU mode changes", "uuid", uuid, "from", string(old.mode), "to", string(now.mode))
		case old.mode != "":
			t.log.Warn("GPU is held in another mode than recorded", "uuid", uuid,
				"recorded", string(old.mode), "held_as", string(now.mode), "by", now.holders)
		}
	}
}

// needsRenewal reports whether only a new checkpoint can show that a pending GPU
// is still held.
func (t *Tracker) needsRenewal(held []Held) bool {
	if time.Since(t.renewed) < renewEvery {
		return false
	}
	for _, h := range held {
		uuid, _ := t.gpuOf(h.Device)
		if g, known := t.gpus[uuid]; h.Unverified && known && g.pending() {
			t.renewed = time.Now()
			return true
		}
	}
	return false
}

// usages sorts an observation by GPU, for those of the machine.
func (t *Tracker) usages(o *Observation) map[string]*usage {
	now := time.Now()
	starting := t.calls.oldest()
	all := map[string]*usage{}
	for _, uuid := range t.present {
		all[uuid] = &usage{
			at: now, offered: map[config.Mode]bool{}, held: map[config.Mode][]string{},
			allocating: t.calls.allocating[uuid] > 0, starting: starting,
		}
	}
	for _, d := range o.Offered {
		if uuid, mode := t.gpuOf(d); all[uuid] != nil {
			all[uuid].offered[mode] = true
		}
	}
	for _, h := range o.Held {
		if uuid, mode := t.gpuOf(h.Device); all[uuid] != nil {
			all[uuid].held[mode] = insert(all[uuid].held[mode], h.By)
		}
	}
	return all
}
