package devicestate

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// Rejections returns the pods with containers that wait for shares, clean GPUs, HCAs or IMEX channels now, by namespace
// and name. None that requests one has started.
func (s *State) Rejections() []report.Rejection {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.rejected))
	slices.SortFunc(all, func(x, y report.Rejection) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.UID, y.UID))
	})
	return all
}

// waited reports whether a container waited for HCAs, IMEX channels or clean GPUs. A
// pod's other containers without shares have no part in that.
func (s *State) waited(c kubelet.Container) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.rejected[c.Pod]
	return x.Container == c.Name && slices.Contains(
		[]string{allocate.RejectedHCAs, allocate.RejectedChannels, allocate.RejectedDirty}, x.Kind)
}

// noteRejection keeps whether a pod is rejected, and reports a reason that differs from the last one.
func (s *State) noteRejection(p kubelet.Pod, err error) {
	rejected, ok := errors.AsType[*allocate.RejectedError](err)
	if err != nil && !ok {
		return // It may soon be gone.
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.rejected[p]
	if err == nil {
		if delete(s.rejected, p); known {
			s.options.Log.Info("no longer rejected", "pod", p.String())
		}
		return
	}
	now := report.Rejection{
		Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Container: rejected.Container,
		Kind: rejected.Kind, Reason: rejected.Reason, Since: s.options.Now().UTC(), Never: rejected.Never,
	}
	if known {
		now.Since = before.Since
	}
	s.rejected[p] = now
	if now == before {
		return
	}
	s.changed.Notify()
	s.options.Log.Warn("rejected", "pod", p.String(), "container", rejected.Container,
		"kind", rejected.Kind, "reason", rejected.Reason)
	reason := wellknown.EventSGPURejected
	switch rejected.Kind {
	case allocate.RejectedHCAs:
		reason = wellknown.EventHCARejected
	case allocate.RejectedChannels:
		reason = wellknown.EventIMEXRejected
	case allocate.RejectedDirty:
		reason = wellknown.EventGPUDirty
	}
	s.api.WarnPod(p, reason, rejected.Error())
}
