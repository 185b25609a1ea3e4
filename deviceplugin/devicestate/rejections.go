package devicestate

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/internal/notify"
)

// rejections are the pods that wait for shares, HCAs or IMEX channels.
type rejections struct {
	options *Options
	changed notify.Signal

	mu    sync.Mutex // guards byPod
	byPod map[kubelet.Pod]report.Rejection
}

// Rejections returns the pods with containers that wait for shares, HCAs or IMEX channels now, by namespace
// and name. None that requests one has started.
func (s *State) Rejections() []report.Rejection {
	r := &s.rejections
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Values(r.byPod))
	slices.SortFunc(all, func(x, y report.Rejection) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.UID, y.UID))
	})
	return all
}

// waited reports whether a container was rejected for want of HCAs or IMEX channels. A
// pod's other containers without shares have no part in that.
func (r *rejections) waited(c kubelet.Container) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.byPod[c.Pod]
	return x.Container == c.Name && (x.Kind == allocate.RejectedHCAs || x.Kind == allocate.RejectedChannels)
}

// keep forgets the pods that the kubelet does not hold any more.
func (r *rejections) keep(seen *kubelet.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byPod, func(p kubelet.Pod, _ report.Rejection) bool { return !seen.Holds(p) })
}

// note keeps whether a pod is rejected, and reports a reason that differs from the last one.
func (r *rejections) note(p kubelet.Pod, err error) {
	rejected, ok := errors.AsType[*allocate.RejectedError](err)
	if err != nil && !ok {
		return // It may soon be gone.
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.byPod[p]
	if err == nil {
		if delete(r.byPod, p); known {
			r.options.Log.Info("no longer rejected", "pod", p.String())
		}
		return
	}
	now := report.Rejection{
		Namespace: p.Namespace, Pod: p.Name, UID: p.UID, Container: rejected.Container,
		Kind: rejected.Kind, Reason: rejected.Reason, Since: r.options.Now().UTC(), Never: rejected.Never,
	}
	if known {
		now.Since = before.Since
	}
	r.byPod[p] = now
	if now == before {
		return
	}
	r.changed.Notify()
	r.options.Log.Warn("rejected", "pod", p.String(), "container", rejected.Container,
		"kind", rejected.Kind, "reason", rejected.Reason)
	reason := wellknown.EventSGPURejected
	switch rejected.Kind {
	case allocate.RejectedHCAs:
		reason = wellknown.EventHCARejected
	case allocate.RejectedChannels:
		reason = wellknown.EventIMEXRejected
	}
	r.options.API.WarnPod(p, reason, rejected.Error())
}
