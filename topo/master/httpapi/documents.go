package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// document is an answer, compressed.
type document struct {
	gzip []byte
	// tag is the hash of the content, in hex and quoted.
	tag string
}

// pack compresses what write writes.
func pack(write func(io.Writer) error) (*document, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress an answer: %w", err)
	}
	hash := sha256.New()
	if err := write(io.MultiWriter(z, hash)); err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress an answer: %w", err)
	}
	return &document{bytes.Clone(b.Bytes()), `"` + hex.EncodeToString(hash.Sum(nil)[:16]) + `"`}, nil
}

// cache holds what many clients ask for, each in the version that was asked for last.
type cache[T any] struct {
	mu sync.Mutex
	of map[string]versioned[T]
}

type versioned[T any] struct {
	version any
	value   T
}

func (c *cache[T]) get(key string, version any, make func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.of[key]; ok && known.version == version {
		return known.value, nil
	}
	value, err := make()
	if err == nil {
		c.of[key] = versioned[T]{version, value}
	}
	return value, err
}

// along returns the tree along an axis.
func (s *Server) along(now *snapshot.Snapshot, axis fabric.Axis) *fabric.Snapshot {
	if axis == fabric.AxisAuto {
		return now.Tree
	}
	tree, _ := s.trees.get(string(axis), now.Tree, func() (*fabric.Snapshot, error) { return now.Tree.Along(axis), nil })
	return tree
}

// kept answers with the value of a version of the snapshot, which is encoded once.
func (s *Server) kept(
	w http.ResponseWriter, r *http.Request, now *snapshot.Snapshot, version uint64, value func() any,
) {
	d, err := s.documents.get(r.URL.Path, version, func() (*document, error) {
		return pack(func(w io.Writer) error { return json.NewEncoder(w).Encode(value()) })
	})
	if err != nil {
		s.failed(w, r, err)
		return
	}
	w.Header().Set("Heddle-Generation", strconv.FormatUint(now.Generation, 10))
	s.send(w, r, jsonType, d)
}
