// Package hostfile finds files of the node in a process that sees the node's root, or a driver's,
// below a directory of its own. Links are followed as the node follows them: Debian's packages make
// absolute ones, by way of /etc/alternatives, which lead elsewhere from here.
package hostfile

import (
	"cmp"
	"os"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Path is where this process sees what a path of the node leads to; the file need not be there. An
// empty root is this process's own.
func Path(root, path string) (string, error) { return securejoin.SecureJoin(cmp.Or(root, "/"), path) }

// Program is the first of these paths of the node that has an executable file; empty if none has.
func Program(root string, paths ...string) string {
	for _, path := range paths {
		file, err := Path(root, path)
		if err != nil {
			continue
		}
		info, err := os.Stat(file)
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}
