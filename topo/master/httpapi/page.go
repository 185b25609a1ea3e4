package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
)

// index is the file that is seen first.
const index = "index.html"

// file is one of the page's, as it is sent.
type file struct {
	contentType string
	// tag is the hash of the content, quoted.
	tag           string
	plain, zipped []byte
}

// bundle reads and compresses all files, once, at the first call.
func bundle(files fs.FS) func() (map[string]*file, error) {
	return sync.OnceValues(func() (map[string]*file, error) {
		all := map[string]*file{}
		err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			plain, err := fs.ReadFile(files, name)
			if err != nil {
				return err
			}
			all[name], err = pack(name, plain)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the page: %w", err)
		}
		return all, nil
	})
}

func pack(name string, plain []byte) (*file, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("compress %s: %w", name, err)
	}
	if _, err := z.Write(plain); err != nil {
		return nil, fmt.Errorf("compress %s: %w", name, err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress %s: %w", name, err)
	}
	sum := sha256.Sum256(plain)
	return &file{
		contentType: contentType(name), tag: `"` + hex.EncodeToString(sum[:16]) + `"`,
		plain: plain, zipped: bytes.Clone(b.Bytes()),
	}, nil
}

// contentType is by the name's extension: browsers are told not to guess, and
// what a machine's own tables say differs from one to the next.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "application/octet-stream"
}

// page serves the page's files, which a browser is to hold to a policy. A
// browser keeps them and asks each time whether they are still the same: a new
// version shows at once, and an old one costs no more than that question.
func (s *Server) page(files func() (map[string]*file, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all, err := files()
		if err != nil {
			s.failed(w, r, err)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" {
			name = index
		}
		f := all[name]
		if f == nil {
			http.NotFound(w, r)
			return
		}
		if s.options.Policy != "" {
			w.Header().Set("Content-Security-Policy", s.options.Policy)
		}
		packed, fresh := negotiate(w, r, f.tag, f.contentType)
		switch {
		case !fresh:
		case packed:
			send(w, r, f.zipped)
		default:
			send(w, r, f.plain)
		}
	}
}
