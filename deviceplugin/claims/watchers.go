package claims

import (
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/internal/notify"
)

// watchers are the streams of health to the kubelet: one for each version of its API.
type watchers struct {
	mu  sync.Mutex // guards all
	all map[*notify.Signal]bool
}

func newWatchers() *watchers { return &watchers{all: map[*notify.Signal]bool{}} }

func (w *watchers) watch() (changed notify.Signal, stop func()) {
	signal := notify.New()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[&signal] = true
	return signal, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, &signal)
	}
}

func (w *watchers) changed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for signal := range w.all {
		signal.Notify()
	}
}

// appliesTo reports whether a configuration is for a request: for all if it names none. A request's own name
// stands for all its subrequests.
func appliesTo(requests []string, request string) bool {
	above, _, _ := strings.Cut(request, "/")
	for _, r := range requests {
		if r == request || r == above {
			return true
		}
	}
	return len(requests) == 0
}
