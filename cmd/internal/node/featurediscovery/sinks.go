package featurediscovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/internal/atomicfile"
)

// sink takes what the Node should carry: a [nodesync.Syncer] writes it to the
// Node.
type sink interface {
	// Sync makes it so. It must be cheap when nothing changed.
	Sync(ctx context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error)
	// Warn reports to operators that something became wrong.
	Warn(ctx context.Context, reason, message string) error
}

// logged leaves warnings to the daemon's log.
type logged struct{}

func (logged) Warn(context.Context, string, string) error { return nil }

// fileSink writes the labels to a file for node-feature-discovery's local
// source: one key=value a line. Taints have no place there.
type fileSink struct {
	logged

	path string
}

// maxFeatureFile is what node-feature-discovery reads, in bytes.
const maxFeatureFile = 64 << 10

// Sync replaces the file if its content differs. The rename makes readers see
// the old file or the new one, never half of one.
func (s fileSink) Sync(_ context.Context, _ *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(want.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, want.Labels[key])
	}
	if b.Len() > maxFeatureFile {
		return nodesync.Result{}, fmt.Errorf("feature file %s: %d bytes, node-feature-discovery reads %d",
			s.path, b.Len(), maxFeatureFile)
	}
	if atomicfile.Holds(s.path, b.Bytes()) {
		return nodesync.Result{}, nil
	}
	// The directory is node-feature-discovery's: none means that no worker of
	// it reads the file.
	_, err := os.Stat(filepath.Dir(s.path))
	if err == nil {
		err = atomicfile.Write(s.path, b.Bytes(), 0o644, atomicfile.Quick)
	}
	if err != nil {
		return nodesync.Result{}, fmt.Errorf("write feature file: %w", err)
	}
	return nodesync.Result{Writes: 1}, nil
}

// printSink is --dry-run: it prints the difference between the Node and what it
// should carry, all of that where no Node is known, and writes nothing.
type printSink struct {
	logged

	out io.Writer
}

// Sync prints what a write would change.
func (s printSink) Sync(_ context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	if node == nil {
		node = &corev1.Node{}
	}
	changes, conflicts := nodesync.Preview(node, want)
	for _, c := range changes {
		if _, err := fmt.Fprintln(s.out, c); err != nil {
			return nodesync.Result{}, fmt.Errorf("print the dry run: %w", err)
		}
	}
	return nodesync.Result{Conflicts: conflicts}, nil
}
