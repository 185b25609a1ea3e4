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
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// sink receives the desired labels and taints; a [nodesync.Syncer] writes them to the Node.
type sink interface {
	// Sync applies them. It must be cheap when nothing changed.
	Sync(ctx context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error)
	// Warn reports a problem to operators.
	Warn(ctx context.Context, reason, message string) error
}

// logged leaves warnings to the daemon's log.
type logged struct{}

func (logged) Warn(context.Context, string, string) error { return nil }

// fileSink writes the labels to a file for node-feature-discovery's local source, one
// key=value per line. Such files have no taints.
type fileSink struct {
	logged

	path string
}

// maxFeatureFile is node-feature-discovery's limit, in bytes.
const maxFeatureFile = 64 << 10

// Sync replaces the file if its content differs.
func (s fileSink) Sync(_ context.Context, _ *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(want.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, want.Labels[key])
	}
	if b.Len() > maxFeatureFile {
		return nodesync.Result{}, fmt.Errorf("feature file %s: %d bytes exceed node-feature-discovery's limit of %d",
			s.path, b.Len(), maxFeatureFile)
	}
	if hostfile.Holds(s.path, b.Bytes()) {
		return nodesync.Result{}, nil
	}
	// The directory is node-feature-discovery's: without it nobody reads the file.
	_, err := os.Stat(filepath.Dir(s.path))
	if err == nil {
		err = hostfile.Write(s.path, b.Bytes(), 0o644, hostfile.Quick)
	}
	if err != nil {
		return nodesync.Result{}, fmt.Errorf("write feature file: %w", err)
	}
	return nodesync.Result{Writes: 1}, nil
}

// printSink implements --dry-run: it prints the changes, or everything without a Node, and
// writes nothing.
type printSink struct {
	logged

	out io.Writer
}

// Sync prints the changes.
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
