package topoworker

import (
	"context"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// released follows the Node's request to release its GPUs' driver: until it ends, no scan opens
// a session with the driver.
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
