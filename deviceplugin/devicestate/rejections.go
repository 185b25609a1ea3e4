package devicestate

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// Rejection is a pod with containers that wait for shares. None that requests one
// has started.
type Rejection struct {
	Pod       kubelet.Pod
	Container string
	// Kind is request, allocation, unscheduled or full.
	Kind   string
	Reason string
	Since  time.Time
}

// Rejections are the pods that wait for shares now, by namespace and name.
func (s *State) Rejections() []Rejection { return s.rejections.list() }

// noteRejection keeps whether a pod is rejected, and reports each reason once.
func (s *State) noteRejection(p kubelet.Pod, err error) {
	rejected, ok := errors.AsType[*allocate.RejectedError](err)
	switch {
	case err == nil:
		if s.rejections.remove(p) {
			s.options.Log.Info("no longer rejected", "pod", p.String())
		}
	case ok && s.rejections.add(p, rejected, s.options.Now()):
		s.changed.Notify()
		s.options.Log.Warn("rejected", "pod", p.String(), "container", rejected.Container,
			"kind", rejected.Kind, "reason", rejected.Reason)
		s.pods.warn(p, SGPURejected, rejected.Error())
	}
	// Any other error may soon be gone.
}

// maxReported bounds the reasons that are reported of one pod: what is left of
// GPUs changes with every consumer.
const maxReported = 8

// rejections are the pods that wait for shares.
type rejections struct {
	mu   sync.Mutex // guards what follows
	pods map[kubelet.Pod]*reported
}

// reported is a rejection and the reasons that were reported.
type reported struct {
	Rejection
	reasons map[string]bool
}

// add returns whether the reason is to be reported.
func (r *rejections) add(p kubelet.Pod, err *allocate.RejectedError, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.pods[p]
	if x == nil {
		if r.pods == nil {
			r.pods = make(map[kubelet.Pod]*reported)
		}
		x = &reported{Rejection{Pod: p, Since: now}, make(map[string]bool)}
		r.pods[p] = x
	}
	x.Container, x.Kind, x.Reason = err.Container, err.Kind, err.Reason
	if x.reasons[err.Error()] || len(x.reasons) == maxReported {
		return false
	}
	x.reasons[err.Error()] = true
	return true
}

// remove reports whether the pod was rejected.
func (r *rejections) remove(p kubelet.Pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.pods[p]
	delete(r.pods, p)
	return was
}

// keep drops the pods for which it is false.
func (r *rejections) keep(holds func(kubelet.Pod) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.pods, func(p kubelet.Pod, _ *reported) bool { return !holds(p) })
}

func (r *rejections) list() []Rejection {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Rejection, 0, len(r.pods))
	for _, x := range r.pods {
		all = append(all, x.Rejection)
	}
	slices.SortFunc(all, func(x, y Rejection) int {
		return cmp.Or(cmp.Compare(x.Pod.Namespace, y.Pod.Namespace), cmp.Compare(x.Pod.Name, y.Pod.Name),
			cmp.Compare(x.Pod.UID, y.Pod.UID))
	})
	return all
}
