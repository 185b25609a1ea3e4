package static

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"

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

	// path, stat and node are of the last read, file is its last good outcome
	// for the node.
	path, node string
	stat       os.FileInfo
	file       *Node
	err        error
}

// New returns a Source that has read nothing. A nil log discards.
func New(log *slog.Logger) *Source {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Source{log: log}
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceStatic }

// Discover reports what the file has about the node.
func (s *Source) Discover(ctx context.Context, q worker.Query) worker.Report {
	var r worker.Report
	path := string(q.Topology.StaticFile)
	if path == "" || !q.Topology.Uses(config.SourceStatic) {
		s.path, s.file = "", nil
		return r
	}
	if path != s.path || q.Node != s.node {
		s.path, s.node, s.stat, s.file = path, q.Node, nil, nil
	}
	s.read(ctx)
	if s.err != nil {
		r.Skip("static", s.err.Error())
	}
	if s.file == nil {
		r.NoPath = worker.Unavailable
		return r
	}
	r.Path = s.file.Path
	for _, rail := range s.file.Rails {
		r.AddRail(&q, "static", rail)
	}
	return r
}

// read reads the file if it is another than before. A mounted ConfigMap is
// replaced by renaming, so its inode changes too.
func (s *Source) read(ctx context.Context) {
	stat, err := os.Stat(s.path)
	if err == nil && s.stat != nil && os.SameFile(stat, s.stat) && stat.ModTime().Equal(s.stat.ModTime()) &&
		stat.Size() == s.stat.Size() {
		return
	}
	s.stat = stat
	var nodes map[string]Node
	if err == nil {
		nodes, err = load(s.path)
	}
	if err == nil {
		node := nodes[s.node]
		s.file = &node
	} else if s.err == nil || s.err.Error() != err.Error() {
		s.log.WarnContext(ctx, "static topology is bad, keeping the last good one", "err", err)
	}
	s.err = err
}

func load(path string) (map[string]Node, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(path[strings.LastIndexByte(path, '/')+1:], b)
}
