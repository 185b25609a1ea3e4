// Package page holds the files that topo-master serves at /. It owns how the
// map looks to a person; what it shows comes from the API beside it.
package page

import (
	"embed"
	"io/fs"
)

//go:embed index.html
var files embed.FS

// Files are the page's; index.html is the first.
func Files() fs.FS { return files }
