// Package static reads a file with the groups of a node and the switch of each of its rails.
//
// It owns the file's format and validation. It is strict, and reports the line of every fault. What is
// invalid about the file or the node changes nothing; the last valid values stay in use. docs/concepts/topology.md
// describes the format.
package static

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

// Confidence is the confidence in a file, in percent: people write what
// should be.
const Confidence = 80

// Source reads the file that the configuration names, when it changes.
type Source struct {
	log *slog.Logger

	// path and stat are of the last read, place is its last good outcome.
	path  string
	stat  os.FileInfo
	place *worker.Place
	err   error
	// stale is whether place is of an earlier file.
	stale bool
	// good is the time when place was last found to match the file.
	good time.Time
}

// New returns a Source that has read nothing.
func New(log *slog.Logger) *Source { return &Source{log: log} }

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceStatic }

// Discover reports what the file has about the node.
func (s *Source) Discover(ctx context.Context, q worker.Query) worker.Report {
	var r worker.Report
	path := string(q.Topology.StaticFile)
	if path == "" || !q.Topology.Uses(config.SourceStatic) {
		s.path, s.place = "", nil
		return r
	}
	if path != s.path {
		s.path, s.stat, s.place, s.good = path, nil, nil, time.Time{}
	}
	s.read(ctx, q.Node)
	if s.err != nil {
		r.Skip("static", s.err.Error())
	}
	if s.place == nil {
		r.Nothing(&q, worker.Unavailable)
		r.Silent(s.good, s.err.Error())
		return r
	}
	if s.stale {
		r.Silent(s.good, s.err.Error())
	}
	r.Enter(&q, s.Kind(), s.place, Confidence)
	return r
}

// read reads the file if it is another than before. A mounted ConfigMap is
// replaced by renaming, so its inode changes too.
func (s *Source) read(ctx context.Context, node string) {
	stat, err := os.Stat(s.path)
	if err == nil && s.stat != nil && os.SameFile(stat, s.stat) && stat.ModTime().Equal(s.stat.ModTime()) &&
		stat.Size() == s.stat.Size() {
		if !s.stale {
			s.good = time.Now()
		}
		return
	}
	s.stat = stat
	var nodes map[string]worker.Place
	if err == nil {
		nodes, err = load(s.path)
	}
	place, known := nodes[node]
	if s.stale = err != nil && !known; !s.stale {
		s.place, s.good = &place, time.Now()
	}
	if err != nil && (s.err == nil || s.err.Error() != err.Error()) {
		s.log.WarnContext(ctx, "static topology is bad, keeping the last good values", "err", err)
	}
	s.err = err
}

func load(path string) (map[string]worker.Place, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(filepath.Base(path), b)
}
