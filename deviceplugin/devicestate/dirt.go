package devicestate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

const (
	// dyingFor is how long a start waits for a GPU on which dirt has just been found, with a look every lookEvery: a
	// process that was killed takes seconds to give gigabytes back. Later calls of the kubelet fail at once.
	dyingFor  = 5 * time.Second
	lookEvery = 200 * time.Millisecond
)

// dirt describes what keeps a GPU from its next pod.
type dirt struct {
	since time.Time
	text  string
}

// awaitGPUs is await for those that a container has not yet. What pods that are gone had is nobody's.
func (s *State) awaitGPUs(ctx context.Context, c kubelet.Container, gpus []cdi.DeviceGPU, seen *observation) error {
	if seen.CheckpointErr == nil {
		s.expire(seen, liveDevices(seen))
	}
	var uuids []string
	for i := range gpus {
		if !s.usersOf(gpus[i].UUID)[c.UID] {
			uuids = append(uuids, gpus[i].UUID)
		}
	}
	return s.await(ctx, c.Name, uuids)
}

// await returns once GPUs that a container or a claim is about to get are clean, or fails with what is on them.
func (s *State) await(ctx context.Context, container string, uuids []string) error {
	for len(uuids) > 0 && s.inventory.Load().Config.Health.Checks(config.CheckDirty) {
		reasons, found := s.look(ctx, uuids)
		if len(reasons) == 0 {
			break
		}
		err := &allocate.RejectedError{
			Container: container, Kind: allocate.RejectedDirty, Reason: strings.Join(reasons, "; "),
		}
		if s.options.Now().Sub(found) >= dyingFor {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lookEvery):
		}
	}
	return nil
}

// usersOf returns the UIDs of the pods that have a part of a GPU and may have started: their specs are written.
func (s *State) usersOf(uuid string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := map[string]bool{}
	for device, e := range s.entries {
		shares := slices.ContainsFunc(e.Shares, func(share allocation.Share) bool { return share.UUID == uuid })
		has := e.Owner != nil && s.gone[device].IsZero() && (shares || slices.Contains(e.IDs, uuid))
		if has && s.cdi.HasSpec(e.Name()) {
			users[e.Owner.UID] = true
		}
	}
	for _, c := range s.claims {
		last := len(c.Devices) - 1 // The specs are written in order.
		if slices.Contains(c.GPUs(), uuid) && s.cdi.HasSpec(c.Devices[last].CDIName()) {
			for _, pod := range c.Pods {
				users[pod.UID] = true
			}
		}
	}
	return users
}

// look looks at GPUs, and remembers what is on them. It returns that, and when the last of it was first found. While a
// driver does not answer, what was found before stands.
func (s *State) look(ctx context.Context, uuids []string) (reasons []string, newest time.Time) {
	s.asking.Lock()
	ctx, cancel := context.WithTimeout(ctx, gpu.OccupancyTimeout)
	answers := s.occupancies.Ask(ctx, uuids, s.options.GPUs.Occupancy)
	cancel()
	s.asking.Unlock()
	for i, uuid := range uuids {
		what, err := s.dirtOn(uuid, answers[i])
		s.mu.Lock()
		found, known := s.dirty[uuid]
		if !known {
			found.since = s.options.Now()
		}
		switch {
		case what != "":
			found.text = fmt.Sprintf("GPU %s still has %s on it, since %s", uuid, what, found.since.UTC().Format(time.RFC3339))
			s.dirty[uuid] = found
		case err == nil:
			found.text = ""
			delete(s.dirty, uuid)
		}
		s.mu.Unlock()
		if known != (found.text != "") {
			s.options.Log.Info("dirt on a GPU changed", "gpu", uuid, "dirt", what)
			s.changed.Notify()
		}
		if found.text != "" {
			reasons = append(reasons, found.text)
			newest = slices.MaxFunc([]time.Time{newest, found.since}, time.Time.Compare)
		}
	}
	return reasons, newest
}

// dirtOn returns what keeps a GPU from its next pod, empty if nothing does. Where the driver names no process, those
// count that have the GPU's device node open.
func (s *State) dirtOn(uuid string, answer bounded.Answer[gpu.Occupancy]) (string, error) {
	used, absent := answer.Value.Used, errors.Is(answer.Err, gpu.ErrAbsent)
	if absent {
		used = -1
	} else if answer.Err != nil {
		return "", answer.Err
	}
	on, users := s.occupants(answer.Value.Processes), s.usersOf(uuid)
	what, unseen := allocate.Dirt(on, used, answer.Value.Idle, users)
	if absent || unseen {
		what, _ = allocate.Dirt(append(on, s.openers(uuid)...), used, answer.Value.Idle, users)
	}
	return what, nil
}

// occupants finds where processes run, and leaves out those that have ended, or have PIDs of another namespace.
func (s *State) occupants(processes []gpu.Process) (all []allocate.Occupant) {
	if !s.options.Processes.HostPIDs() {
		return nil
	}
	for _, p := range processes {
		in, err := s.options.Processes.Container(p.PID)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		pod, ended := in.PodUID, in.PodUID != "" && s.isGone(kubelet.Pod{UID: in.PodUID})
		if err != nil && !errors.Is(err, cgroup.ErrNoPod) {
			pod = "unknown" // And so none that has ended.
		}
		all = append(all, allocate.Occupant{
			Process: p, Command: s.options.Processes.Command(p.PID), Pod: pod, Ended: ended,
		})
	}
	return all
}

// openers returns the processes of pods that have ended which have the device node of a GPU open.
func (s *State) openers(uuid string) []allocate.Occupant {
	m := s.inventory.Load().Machine
	of := cmp.Or(m.ParentGPU(uuid), uuid)
	at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == of && g.Minor != nil })
	if at < 0 {
		return nil
	}
	node := strconv.Itoa(*m.GPUs[at].Minor)
	if v := s.options.GPUs.Vendors().Of(m, &m.GPUs[at]); v != nil {
		node = v.Node + node
	}
	pids, _ := s.options.Processes.PIDs()
	processes := make([]gpu.Process, len(pids))
	for i, pid := range pids {
		processes[i] = gpu.Process{PID: pid, Passive: true}
	}
	return slices.DeleteFunc(s.occupants(processes), func(o allocate.Occupant) bool {
		if !o.Ended {
			return true
		}
		paths, _ := s.options.Processes.Open(o.PID, node)
		// /dev/nvidia1 begins /dev/nvidia10.
		return !slices.ContainsFunc(paths, func(path string) bool { return strings.HasSuffix(path, node) })
	})
}

// LookAgain looks again at the GPUs that are not clean.
func (s *State) LookAgain(ctx context.Context) {
	s.mu.Lock()
	uuids := slices.Collect(maps.Keys(s.dirty))
	s.mu.Unlock()
	s.look(ctx, uuids)
}

// Dirty returns what has kept GPUs from their next pods for at least a time, by UUID; of a MIG device, by its GPU's.
func (s *State) Dirty(after time.Duration) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for uuid, found := range s.dirty {
		if s.options.Now().Sub(found.since) >= after {
			all[cmp.Or(s.inventory.Load().Machine.ParentGPU(uuid), uuid)] = found.text
		}
	}
	return all
}
