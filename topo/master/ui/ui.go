// Package ui is the web page that topo-master serves at its root: the fabric
// as nested boxes, and what is wrong in it.
//
// It owns the page's files and their content security policy: the
// document, one script and one style sheet, which make generate bundles from src.
// The page needs no other host and no inline script or style; it reads v1/topology,
// v1/nodes/{name} and v1/watch by addresses relative to its own, so that it works behind
// a path too, as under kubectl proxy. This package serves nothing itself and knows
// nothing of the tree.
package ui

import (
	"embed"
	"io/fs"
)

//go:embed index.html favicon.svg page.js page.css
var files embed.FS

// Policy is the Content-Security-Policy to serve the files with: no more than
// the page uses.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Files returns the page's; index.html is the first to be seen.
func Files() fs.FS { return files }
