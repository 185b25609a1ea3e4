package nvml

import "github.com/heddle-dev/heddle/internal/hostfile"

// hookPaths returns where NVIDIA's toolkit has its CDI hook on a host: as its packages and as
// gpu-operator install it. The program nvidia-ctk has hooks too, and is not among them: a
// toolkit that has it alone is older than 1.16, and fails on hooks of today's specs.
func hookPaths() []string {
	return []string{"/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
}

// FindHook returns the path on the host of the first CDI hook that is there; empty if there is
// none. This process sees the host's files below root.
func FindHook(root string) string { return hostfile.Program(root, hookPaths()...) }
