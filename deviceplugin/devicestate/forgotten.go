package devicestate

import (
	"context"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// A kubelet that has just started knows its pods within a second or so, and
// gives devices to new ones at once.
const (
	searchFor   = 3 * time.Second
	searchEvery = 100 * time.Millisecond
)

// Forgotten are the device IDs of a resource that running containers have and
// that the kubelet takes for free, because it lost its checkpoint; each with who
// has it. The kubelet gives them to the next pod that asks. While a kubelet starts
// and it is not known yet, they are all that were given to pods that are not known
// to be gone.
func (s *State) Forgotten(resource string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forgottenLocked(resource, s.unsure)
}

// forgottenLocked is for holders of mu.
func (s *State) forgottenLocked(resource string, all bool) map[string]string {
	if len(s.forgotten) == 0 && !all {
		return nil
	}
	forgotten := make(map[string]string)
	for _, e := range s.entries {
		if e.Resource != resource || e.Owner == nil {
			continue
		}
		if !s.forgotten[*e.Owner] && (!all || s.pods.gone(e.Owner.Pod)) {
			continue
		}
		for _, id := range e.IDs {
			forgotten[id] = e.Owner.String()
		}
	}
	return forgotten
}

// detectForgotten warns of containers that were prepared, that have their pod, and
// of which the kubelet knows no devices: its checkpoint was lost.
func (s *State) detectForgotten(ctx context.Context, seen *observation) {
	lacks := seen.Forgotten()
	s.mu.Lock()
	found := make(map[kubelet.Container]bool)
	for _, e := range s.entries {
		if e.Owner != nil && lacks(*e.Owner) && !s.forgotten[*e.Owner] && e.Decision <= seen.since {
			found[*e.Owner] = true
		}
	}
	for c := range s.forgotten {
		if !lacks(c) {
			delete(s.forgotten, c)
		}
	}
	s.mu.Unlock()
	for c := range found {
		if !s.pods.exists(ctx, c.Pod) {
			continue // Another pod has its name by now.
		}
		s.mu.Lock()
		known := s.forgotten[c]
		s.forgotten[c] = true
		s.mu.Unlock()
		if known {
			continue
		}
		s.options.Log.Warn("devices lost", "pod", c.Pod.String(), "container", c.Name)
		s.pods.warn(c.Pod, DevicesLost, fmt.Sprintf("the kubelet has lost the devices of container %s: it runs on, and "+
			"cannot start again; delete the pod to have it made again", c.Name))
	}
}

// searchForgotten looks again and again while a kubelet starts.
func (s *State) searchForgotten(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchFor)
	defer cancel()
	defer func() {
		s.mu.Lock()
		s.unsure = false
		s.mu.Unlock()
	}()
	tick := time.NewTicker(searchEvery)
	defer tick.Stop()
	for {
		if seen, err := s.observe(ctx); err == nil {
			s.detectForgotten(ctx, seen)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
