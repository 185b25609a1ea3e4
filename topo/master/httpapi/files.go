package httpapi

import (
	"cmp"
	"embed"
	"net/http"
	"path"
	"strings"
)

// page is the web page: the fabric as nested boxes, and what is wrong in it. make generate bundles
// its script and its style sheet from ui/src. It needs no other host, and reads the API by addresses
// relative to its own, so that it works behind a path too, as under kubectl proxy.
//
//go:embed ui/index.html ui/favicon.svg ui/page.js ui/page.css
var page embed.FS

// policy is the Content-Security-Policy of the page: no more than it uses.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file serves a file of the page. A browser keeps it and asks each time whether it is still the
// same: a new version shows at once.
func (s *Server) file(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(strings.TrimPrefix(r.URL.Path, "/"), "index.html")
	body, err := page.ReadFile("ui/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	// Package mime reads tables that differ from one machine to the next.
	contentType := map[string]string{
		".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
		".svg": "image/svg+xml",
	}[path.Ext(name)]
	w.Header().Set("Content-Security-Policy", policy)
	s.answer(w, r, contentType, body)
}
