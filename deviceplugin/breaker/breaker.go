// Package breaker decides when a node that rejects pod after pod is withdrawn, and when it gets a pod again.
//
// It is a circuit breaker: [Threshold] pods that fail in a row withdraw all devices of the node. After a wait one pod
// is let through as a probe. If it starts, the node is back in service; if not, the next wait is twice as long.
// [Read] finds what a pod shows about its node. The package has no clock, writes nothing and touches no pod.
package breaker

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Threshold is how many pods fail in a row before the node is withdrawn.
const Threshold = 3

// longestWait bounds the wait for a probe, maxReason a message of the container runtime, in bytes.
const longestWait, maxReason = time.Hour, 512

// Phase is where a node stands.
type Phase string

// The phases: a node that takes pods; one without healthy devices; one that waits for a pod as a probe.
const (
	InService Phase = ""
	Withdrawn Phase = "withdrawn"
	Probing   Phase = "probing"
)

// Failure is a pod that failed; Rejected is as in [Pod].
type Failure struct {
	Pod      string    `json:"pod"`
	Reason   string    `json:"reason"`
	Rejected bool      `json:"rejected,omitempty"`
	At       time.Time `json:"at"`
}

// State holds what a node remembers. The zero value is a node in service. Methods return a changed copy.
type State struct {
	Phase Phase `json:"phase,omitempty"`
	// At is the beginning of the phase, or when the node was last kept in service.
	At time.Time `json:"at,omitzero"`
	// Tries is how often the node was withdrawn, or kept in service, since a pod started.
	Tries int `json:"tries,omitempty"`
	// Kept explains why the node is in service all the same; empty otherwise.
	Kept string `json:"kept,omitempty"`
	// Failed counts the pods that failed without a success after them, and Last is the last of them.
	Failed int     `json:"failed,omitempty"`
	Last   Failure `json:"last,omitzero"`
	// Counted are the pods on the node that count no more.
	Counted map[types.UID]bool `json:"counted,omitempty"`
	// Probed is true while the probe is on the node, without a result.
	Probed bool `json:"probed,omitempty"`
}

// See returns the state after a look at the pods of the node; first is the first wait. Unless the node is settled, no
// failure counts: a pod that was rejected then never does, and a container that does not start may do so soon.
func (s State) See(now time.Time, pods []Pod, settled bool, first time.Duration) State {
	if slices.ContainsFunc(pods, s.succeeds) {
		s = State{Counted: s.Counted}
	}
	counts, counted := settled && s.Phase != Withdrawn, s.Counted
	if s.Phase == Withdrawn && !now.Before(s.Until(first)) {
		s.Phase, s.At = Probing, now // Pods that failed before do not count as the probe.
	}
	s.Counted, s.Probed = map[types.UID]bool{}, false
	for i := range pods {
		p := &pods[i]
		switch {
		case p.Failed == "":
			s.Probed = s.Probed || s.Phase == Probing && p.Waits && !before(p.Admitted, s.At)
			continue
		case counted[p.UID]:
		case counts:
			s.Failed, s.Last = s.Failed+1, Failure{p.Name, wellknown.ClipTo(p.Failed, maxReason), p.Rejected, now}
			if s.Phase == Probing {
				s.Phase, s.At, s.Kept = InService, time.Time{}, "" // Until it is withdrawn again.
			}
		case !settled && !p.Rejected:
			continue
		}
		s.Counted[p.UID] = true
	}
	s.Probed = s.Probed && s.Phase == Probing
	return s
}

// succeeds reports whether a pod has started since the last failure. After a pod that the kubelet rejected, only
// one that it admitted later has.
func (s State) succeeds(p Pod) bool {
	return s.Failed > 0 && p.Failed == "" && !p.Started.IsZero() &&
		!before(p.Started, s.Last.At) && (!s.Last.Rejected || !before(p.Admitted, s.Last.At))
}

// before compares a time of a pod, which has no fractions of a second, with one of this process. A pod
// without the time is later than all.
func before(t, other time.Time) bool { return !t.IsZero() && t.Before(other.Truncate(time.Second)) }

// Until returns the end of the wait.
func (s State) Until(first time.Duration) time.Time {
	return s.At.Add(min(first<<min(max(s.Tries-1, 0), 12), longestWait)) // A second doubles 12 times to an hour.
}

// Due reports whether the node is to be withdrawn or kept.
func (s State) Due(now time.Time, first time.Duration) bool {
	return s.Phase == InService && s.Failing() && !now.Before(s.Until(first))
}

// Failing reports whether the node rejects pod after pod, whatever its phase.
func (s State) Failing() bool { return s.Failed >= Threshold }

// Withdraw returns the state of the node once it is withdrawn, or once it is kept in service for a reason.
func (s State) Withdraw(now time.Time, kept string) State {
	s.At, s.Tries, s.Kept = now, s.Tries+1, kept
	if kept == "" {
		s.Phase = Withdrawn
	}
	return s
}

// String describes the failures for people; empty unless the node is failing.
func (s State) String() string {
	if !s.Failing() {
		return ""
	}
	return fmt.Sprintf("%d pods in a row did not start, the last one %s: %s", Threshold, s.Last.Pod, s.Last.Reason)
}
