package feature

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

// NodeSink writes the Node through the API server.
type NodeSink struct{ *nodesync.Syncer }

// Put writes what differs.
func (s NodeSink) Put(ctx context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	return s.Sync(ctx, node, want)
}

// FileSink writes the labels to a file for node-feature-discovery's local
// source: one key=value a line. Taints have no place there.
type FileSink struct{ Path string }

// maxFeatureFile is what node-feature-discovery reads, in bytes.
const maxFeatureFile = 64 << 10

// Put replaces the file if its content differs. The rename makes readers see
// the old file or the new one, never half of one.
func (s FileSink) Put(_ context.Context, _ *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(want.Labels)) {
		fmt.Fprintf(&b, "%s=%s\n", key, want.Labels[key])
	}
	if b.Len() > maxFeatureFile {
		return nodesync.Result{}, fmt.Errorf("feature file %s: %d bytes, node-feature-discovery reads %d",
			s.Path, b.Len(), maxFeatureFile)
	}
	if atomicfile.Holds(s.Path, b.Bytes()) {
		return nodesync.Result{}, nil
	}
	// The directory is node-feature-discovery's: none means that no worker of
	// it reads the file.
	_, err := os.Stat(filepath.Dir(s.Path))
	if err == nil {
		err = atomicfile.Write(s.Path, b.Bytes(), 0o644, atomicfile.Quick)
	}
	if err != nil {
		return nodesync.Result{}, fmt.Errorf("write feature file: %w", err)
	}
	return nodesync.Result{Writes: 1}, nil
}

// Warn does nothing: the daemon logs the message.
func (FileSink) Warn(context.Context, string, string) error { return nil }

// PrintSink is --dry-run: it prints what a write would change and writes
// nothing.
type PrintSink struct{ Out io.Writer }

// Put prints the difference between the node and want, or all of want where
// no node is known.
func (s PrintSink) Put(_ context.Context, node *corev1.Node, want nodesync.Desired) (nodesync.Result, error) {
	if node == nil {
		node = &corev1.Node{}
	}
	changes, conflicts := nodesync.Preview(node, want)
	for _, c := range changes {
		if _, err := fmt.Fprintln(s.Out, c); err != nil {
			return nodesync.Result{}, fmt.Errorf("print the dry run: %w", err)
		}
	}
	return nodesync.Result{Conflicts: conflicts}, nil
}

// Warn does nothing: the daemon logs the message.
func (PrintSink) Warn(context.Context, string, string) error { return nil }

// NothingSink is --cleanup: it wants no label and no taint of heddle.
type NothingSink struct{ Sink }

// Put removes what heddle wrote.
func (s NothingSink) Put(ctx context.Context, node *corev1.Node, _ nodesync.Desired) (nodesync.Result, error) {
	return s.Sink.Put(ctx, node, nodesync.Desired{})
}
