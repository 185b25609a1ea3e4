package devicestate

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// Rejection is a pod with containers that wait for shares, or for HCAs. None that
// requests one has started.
type Rejection struct {
	Pod       kubelet.Pod
	Container string
	// Kind is request, allocation, unscheduled, full or hcas.
	Kind   string
	Reason string
	Since  time.Time
}

// maxReported bounds the reasons that are reported of one pod: what is left of
// GPUs changes with every consumer.
const maxReported = 8

// rejection is a Rejection and the reasons of it that were reported.
type rejection struct {
	Rejection
	reported map[string]bool
}

// Rejections are the pods that wait for shares or HCAs now, by namespace and name.
func (s *State) Rejections() []Rejection {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Rejection, 0, len(s.rejected))
	for _, x := range s.rejected {
		all = append(all, x.Rejection)
	}
	slices.SortFunc(all, func(x, y Rejection) int {
		return cmp.Or(cmp.Compare(x.Pod.Namespace, y.Pod.Namespace), cmp.Compare(x.Pod.Name, y.Pod.Name),
			cmp.Compare(x.Pod.UID, y.Pod.UID))
	})
	return all
}

// waitedForHCAs reports whether a container was rejected for want of HCAs. A pod's
// other containers without shares have no part in that.
func (s *State) waitedForHCAs(c kubelet.Container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.rejected[c.Pod]
	return x != nil && x.Kind == allocate.RejectedHCAs && x.Container == c.Name
}

// noteRejection keeps whether a pod is rejected, and reports each reason once.
func (s *State) noteRejection(p kubelet.Pod, err error) {
	rejected, ok := errors.AsType[*allocate.RejectedError](err)
	if err != nil && !ok {
		return // It may soon be gone.
	}
	s.mu.Lock()
	x, known := s.rejected[p]
	if err == nil {
		delete(s.rejected, p)
		s.mu.Unlock()
		if known {
			s.options.Log.Info("no longer rejected", "pod", p.String())
		}
		return
	}
	if !known {
		x = &rejection{Rejection{Pod: p, Since: s.options.Now()}, make(map[string]bool)}
		s.rejected[p] = x
	}
	x.Container, x.Kind, x.Reason = rejected.Container, rejected.Kind, rejected.Reason
	fresh := !x.reported[err.Error()] && len(x.reported) < maxReported
	if fresh {
		x.reported[err.Error()] = true
	}
	s.mu.Unlock()
	if fresh {
		s.changed.Notify()
		s.options.Log.Warn("rejected", "pod", p.String(), "container", rejected.Container,
			"kind", rejected.Kind, "reason", rejected.Reason)
		reason := SGPURejected
		if rejected.Kind == allocate.RejectedHCAs {
			reason = HCARejected
		}
		s.api.WarnPod(p, reason, rejected.Error())
	}
}
