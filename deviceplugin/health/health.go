// Package health decides which GPUs and HCAs of a node are healthy, why not, and
// since when.
//
// It owns the rules: what a driver's error reports mean on this node, how long
// a device must have a fault or none until its health changes, and the one
// snapshot that every consumer reads. It reads no hardware itself and knows no
// vendor: scans of the machine, events and answers to polls come in as values.
// It never touches running pods, and no consumer of a snapshot ever waits for
// hardware.
package health

import (
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// Cause is why a device is unhealthy, as one word for metrics, Events and
// conditions: one of those below, or the kind of a driver's error report
// ([github.com/heddle-dev/heddle/discovery/gpu.Code]).
type Cause string

// The causes.
const (
	// DoubleBitECC is a memory error that could not be corrected.
	DoubleBitECC Cause = devgpu.DoubleBitECC
	// RecoveryAction is the driver asking for a reset or the like.
	RecoveryAction Cause = "RecoveryAction"
	// Lost is a GPU that the driver cannot reach any more.
	Lost Cause = "Lost"
	// NotAnswering is a GPU with a driver that does not return.
	NotAnswering Cause = "NotAnswering"
	// Failed is a GPU that the scan of the machine found unhealthy, such as
	// one that the NVLink fabric did not take.
	Failed Cause = "Failed"
	// UncorrectableErrors is a GPU with counters that report uncorrectable errors.
	UncorrectableErrors Cause = machine.UncorrectableErrors
	// Dirty is a GPU that has had a process or memory of a pod that has ended for too long.
	Dirty Cause = "Dirty"
	// Gone is a device that was there and is not any more.
	Gone Cause = "Gone"
	// PortDown is an HCA without an active port.
	PortDown Cause = "PortDown"
	// NoSubnetManager is an InfiniBand port that no subnet manager runs.
	NoSubnetManager Cause = "NoSubnetManager"
	// Idle is a virtual function that no container has set up.
	Idle Cause = "Idle"
	// RateDegraded is a port slower than it was, or than its like.
	RateDegraded Cause = "RateDegraded"
	// NotSeen is a device that was never there.
	NotSeen Cause = "NotSeen"
)

// State is the health of one device.
type State struct {
	// Name is for people: "GPU 3 (0000:9d:00.0, GPU-5ef)", or "mlx5_3 (0000:9d:00.0)".
	Name    string
	Healthy bool
	// Cause and Reason are empty if it is healthy. Reason is for people.
	Cause  Cause
	Reason string
	// Since is when it became healthy or unhealthy, or was first seen.
	Since time.Time
}

// Snapshot is the health of all devices at one time, and the machine that it
// was read from. It is never changed.
type Snapshot struct {
	// Machine is nil before the first scan.
	Machine *machine.Machine
	// GPUs is keyed by UUID, HCAs by identity ([machine.Machine.HCAIDs]). Devices
	// that went away stay, as Gone.
	GPUs, HCAs map[string]State
}

// GPU returns the health of a GPU by UUID; unhealthy if it is unknown.
func (s *Snapshot) GPU(uuid string) State { return stateOf(s.GPUs, uuid, "GPU") }

// HCA returns the health of an HCA by identity; unhealthy if it is unknown.
func (s *Snapshot) HCA(id string) State { return stateOf(s.HCAs, id, "HCA") }

func stateOf(states map[string]State, id, kind string) State {
	if s, ok := states[id]; ok {
		return s
	}
	return State{Cause: NotSeen, Reason: "this " + kind + " was never seen on the node"}
}

func (s *Snapshot) equal(t *Snapshot) bool {
	return s.Machine == t.Machine && maps.Equal(s.GPUs, t.GPUs) && maps.Equal(s.HCAs, t.HCAs)
}

// changed returns the devices, sorted, that became healthy or unhealthy, or got another
// cause. A device that is healthy when first seen is not a change.
func changed(from, to map[string]State) []string {
	var ids []string
	for id, is := range to {
		was, known := from[id]
		if was.Healthy = was.Healthy || !known; was.Healthy != is.Healthy || was.Cause != is.Cause {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Of returns the health of the devices of one scan, seen for the first time, with all checks.
func Of(m *machine.Machine, now time.Time) *Snapshot {
	t := newTracker(config.Default().Health)
	t.see(m)
	s, _ := t.update(now)
	return s
}
