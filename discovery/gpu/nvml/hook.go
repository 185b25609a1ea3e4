package nvml

import (
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// hookPaths are where NVIDIA's toolkit has its CDI hook on a host: as its packages and as
// gpu-operator install it. The program nvidia-ctk has hooks too, and is not among them: a
// toolkit that has it alone is older than 1.16, and fails on hooks of today's specs.
func hookPaths() []string {
	return []string{"/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
}

// FindHook is the path on the host of the first CDI hook that is there; empty if there is
// none. This process sees the host's files below root.
func FindHook(root string) string {
	for _, path := range hookPaths() {
		// A link of the host leads to another place of the host.
		file, err := securejoin.SecureJoin(filepath.Join("/", root), path)
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
