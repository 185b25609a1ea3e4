package report

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Problem is something that is wrong: Name is with what, such as checkpoint
// or cdi.
type Problem struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// ClaimsPlain is the name of the Problem of an API server that knows less of DRA than heddle publishes.
const ClaimsPlain = "claims-plain"

// Faults are the current problems of one part of the device plugin. Its methods may be called from any goroutine.
type Faults struct {
	// Log gets those that come and go.
	Log *slog.Logger

	mu      sync.Mutex // guards what follows
	reasons map[string]string
}

// Note records that something is wrong, or, without an error, is no longer wrong.
func (p *Faults) Note(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch old := p.reasons[name]; {
	case err == nil && old != "":
		delete(p.reasons, name)
		p.Log.Info("recovered", "component", name)
	case err != nil && err.Error() != old:
		if p.reasons == nil {
			p.reasons = make(map[string]string)
		}
		p.reasons[name] = err.Error()
		p.Log.Warn("health check failed", "component", name, "err", err)
	}
}

// Has reports whether something is wrong now.
func (p *Faults) Has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reasons[name] != ""
}

// Problems returns the current problems, by name.
func (p *Faults) Problems() []Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Problem, 0, len(p.reasons))
	for _, name := range slices.Sorted(maps.Keys(p.reasons)) {
		list = append(list, Problem{name, p.reasons[name]})
	}
	return list
}
