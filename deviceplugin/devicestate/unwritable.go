package devicestate

import "time"

// probeEvery is the interval between probes of the state directory.
const probeEvery = time.Minute

// Unwritable returns the reason why allocations cannot be recorded, or an empty string. With a full
// state directory Allocate fails, and a pod that the kubelet admits fails for good, so no device
// may be offered. It writes to the directory once a minute, and each time while a write has failed.
func (s *State) Unwritable() string {
	now := s.options.Now()
	s.mu.Lock()
	due := s.problems.has(problemState) || s.problems.has(problemSpace) || now.Sub(s.probed).Abs() >= probeEvery
	if due {
		s.probed = now
	}
	s.mu.Unlock()
	if !due {
		return ""
	}
	err := s.checkpoint.probe()
	s.problems.note(problemSpace, err)
	if err != nil {
		return err.Error()
	}
	return ""
}

func (p *problems) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reasons[name] != ""
}
