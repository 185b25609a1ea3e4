// Package hostfile is for files of the node that other processes use too: it replaces them atomically, locks
// directories, and resolves paths below the node's root, or a driver's, which this process sees mounted elsewhere.
// Symbolic links are followed there as on the node: Debian's packages install absolute ones, through
// /etc/alternatives.
package hostfile

import (
	"cmp"
	"os"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Path returns where this process sees the target of a path of the node, which need not exist. An
// empty root is this process's own.
func Path(root, path string) (string, error) { return securejoin.SecureJoin(cmp.Or(root, "/"), path) }

// Program returns the first of these paths of the node with an executable file, or an empty string.
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
