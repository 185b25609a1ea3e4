package gpumode

import (
	"maps"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

const (
	// fast is the time between observations while a mode is about to change, and slow the
	// longest one while all that are pending wait for pods to end: each asks the kubelet
	// twice, which admits 100 questions a second of all callers.
	fast = 100 * time.Millisecond
	slow = time.Second
	// renewEvery is the least time between two checkpoints that the kubelet is made to
	// write: an ordinary init container, which only the checkpoint has, may run long.
	renewEvery = 5 * time.Second
)

// Device is a device ID of a resource: a UUID, or UUID::number for a share.
type Device struct{ Resource, ID string }

// Held is a device that a pod holds, and which pod that is.
type Held struct {
	Device
	By string
	// Unverified means that the pod may have ended: only the kubelet's checkpoint has it.
	Unverified bool
}

// Observation is the state of devices in the kubelet.
type Observation struct {
	// Asked is the time of the first query.
	Asked time.Time
	// Offered are the devices that the kubelet may give to the next pod. They were asked
	// for before Held.
	Offered []Device
	// Held are devices that pods hold, that a call of Allocate in flight is for, or that a
	// finished call allocated and the kubelet does not report yet. Calls were looked at before pods. A
	// container that is bound to another GPU than its device ID names holds both.
	Held []Held
	// Err is set if the offered and held devices are unknown.
	Err error
}

// Observe takes an observation, and writes modes that change. It returns when to observe
// again, zero if nothing is pending; renew asks for a new checkpoint of the kubelet's,
// without pods that had ended by then.
func (t *Tracker) Observe(o *Observation) (again time.Duration, renew bool) {
	t.saving.Lock()
	defer t.saving.Unlock()
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
	t.note(FaultSaving, err)
	t.unsaved = err != nil
	for uuid, to := range moving {
		g := t.gpus[uuid]
		switch {
		case err != nil:
			g.unwritten = true
			g.enter(draining)
		case g.phase != leaving:
			t.unsaved = true // Its mode was wanted again while the file was written.
		default:
			t.log.Info("GPU mode changes", "uuid", uuid, "from", string(g.mode), "to", string(to))
			g = moved(g, to)
		}
		t.gpus[uuid] = g
	}
}

// needsRenewal reports whether only a new checkpoint can show that a pending GPU is still
// held.
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

// usages sorts an observation by GPU of the machine.
func (t *Tracker) usages(o *Observation) map[string]*usage {
	all := map[string]*usage{}
	for _, uuid := range t.present {
		all[uuid] = &usage{asked: o.Asked, offered: map[config.Mode]bool{}, held: map[config.Mode][]string{}}
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

// gpuOf returns the GPU that a device is of, and the mode in which it is. Other device plugins
// have replicas of exclusive GPUs too, under the same resource.
func (t *Tracker) gpuOf(d Device) (uuid string, mode config.Mode) {
	uuid = inventory.DeviceOf(d.ID)
	if inventory.IsReplica(d.ID) && d.Resource != t.config.Resources.GPU || d.Resource == t.config.Resources.SGPU {
		return uuid, config.ModeSGPU
	}
	if parent := t.parents[uuid]; parent != "" {
		uuid = parent
	}
	return uuid, config.ModeNative
}
