package httpapi

import (
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// packFiles reads and compresses all files, once, at the first call.
func packFiles(files fs.FS) func() (map[string]*snapshot.Document, error) {
	return sync.OnceValues(func() (map[string]*snapshot.Document, error) {
		all := map[string]*snapshot.Document{}
		err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			plain, err := fs.ReadFile(files, name)
			if err != nil {
				return err
			}
			all[name], err = pack(plain)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the web UI: %w", err)
		}
		return all, nil
	})
}

// contentType is by the name's extension: browsers must not guess, and
// package mime reads tables that differ from one machine to the next.
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

// files serves the web UI. A browser keeps the files and asks each time whether
// they are still the same: a new version shows at once.
func (s *Server) files(files func() (map[string]*snapshot.Document, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all, err := files()
		if err != nil {
			s.failed(w, r, err)
			return
		}
		name := strings.TrimPrefix(r.URL.Path, "/")
		if name == "" {
			name = "index.html"
		}
		f := all[name]
		if f == nil {
			http.NotFound(w, r)
			return
		}
		if s.options.Policy != "" {
			w.Header().Set("Content-Security-Policy", s.options.Policy)
		}
		s.send(w, r, contentType(name), f)
	}
}
