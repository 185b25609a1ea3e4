package topoworker

import (
	"context"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// released follows what the Node asks about its GPUs' driver: while that is
// released, no scan opens a session with it.
type released struct {
	node    *nodesync.Watch
	release *host.Release
}

// Run implements [runner].
func (r *released) Run(ctx context.Context) error {
	for {
		if node := r.node.Node(); node != nil {
			r.release.Set(program.Released(node.Annotations))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.node.Changed():
		}
	}
}
