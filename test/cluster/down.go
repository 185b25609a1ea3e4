//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Down ends a cluster and removes its state, graceful to nothing in it: the data
// is thrown away anyhow. It also clears what a killed run left. The logs and the
// built binaries stay in the cache.
func (c *Cluster) Down(ctx context.Context) error {
	unlock, err := lockFile(ctx, c.state.Dir+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	return c.remove(ctx)
}

func (c *Cluster) remove(ctx context.Context) error {
	// A second Down of the same cluster returns no error.
	if _, err := os.Stat(c.state.Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// All daemons, shims and containers live below heddle's cgroup root, whatever their
	// parent is now. Mounts and interfaces go with the last process of the namespaces.
	if err := c.cgroups.kill(ctx, ""); err != nil {
		return err
	}
	if err := c.cgroups.remove(ctx); err != nil {
		return err
	}
	// After the kubelet's end, which would otherwise set them again.
	if err := c.restoreSysctls(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.state.Dir); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}
