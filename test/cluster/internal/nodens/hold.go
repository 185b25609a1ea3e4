//go:build linux

// Package nodens is the part of the test cluster that runs inside processes of
// their own: the holder that pins the node's namespaces, the entry of a command
// into them, the forwarder from the host to an address on the node, and the one
// from a Service's address to its endpoints.
//
// It owns the set-up of the mount and network namespace. It never changes a mount
// or an address outside of them.
package nodens

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Layout describes how the node's private file system differs from the host's.
type Layout struct {
	// State is the host directory that holds the private directories.
	State string `json:"state"`
	// Overlays are host directories that get a private upper layer, so that mount
	// points can be made in them without touching the host.
	Overlays []string `json:"overlays"`
	// Binds are node paths backed by State/node/PATH, the same inodes on both sides:
	// a unix socket made on one side can be dialed from the other.
	Binds []string `json:"binds"`
	// Addresses are added to the node's loopback interface, IPv4 only.
	Addresses []string `json:"addresses"`
}

// Hold makes the namespaces it was started in into the node, creates the file at
// ready, and waits until ctx ends. It has to be started with CLONE_NEWNS and CLONE_NEWNET.
func Hold(ctx context.Context, layout Layout, ready string) error {
	if err := mountAll(layout); err != nil {
		return err
	}
	if err := loopback(layout.Addresses); err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	if err := os.WriteFile(ready, nil, 0o600); err != nil {
		return fmt.Errorf("report readiness: %w", err)
	}
	<-ctx.Done()
	return nil
}

func mountAll(layout Layout) error {
	// Private first, so that nothing propagates to the host; then shared among the
	// node's own namespaces, which pods with Bidirectional mounts require.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	for _, dir := range layout.Overlays {
		if err := overlay(layout.State, dir); err != nil {
			return err
		}
	}
	for _, dir := range layout.Binds {
		source := filepath.Join(layout.State, "node", dir)
		for _, d := range []string{source, dir} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return fmt.Errorf("create node directory: %w", err)
			}
		}
		if err := unix.Mount(source, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", dir, err)
		}
	}
	return nil
}

func overlay(state, dir string) error {
	base := filepath.Join(state, "overlay", strings.ReplaceAll(strings.Trim(dir, "/"), "/", "-"))
	upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("create overlay: %w", err)
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("overlay %s: %w", dir, err)
	}
	return nil
}
