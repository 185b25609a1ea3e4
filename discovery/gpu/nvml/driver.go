package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/hostfile"
)

// libraryName is the name that every driver package installs.
const libraryName = "libnvidia-ml.so.1"

// gke is where the installer of Google's images puts a driver. It is the root of
// an installation: bin, lib64 and vulkan are below it. Nodes are in the host's /dev.
const gke = "home/kubernetes/bin/nvidia"

// libraryDirs returns where drivers have their libraries, below their root: the
// packages of Debian, Red Hat and Arch, driver containers, Talos' extension, and a driver
// with a separate directory.
func libraryDirs() []string {
	return []string{
		"usr/lib/" + triple(), "usr/lib64", "usr/lib", "lib/" + triple(), "lib64", "lib", "usr/local/glibc/usr/lib",
		"usr/local/nvidia/lib64",
	}
}

// libraryIn finds the library's name under a driver's root, and the file that it leads to, which
// is to be loaded. The dynamic loader does not look there, and LD_LIBRARY_PATH would bring the
// host's libc along.
func libraryIn(root string) (name, file string, err error) {
	for _, at := range []string{"", gke} {
		for _, dir := range libraryDirs() {
			name := filepath.Join(at, dir, libraryName)
			file, err := hostfile.Path(root, name)
			if err != nil {
				continue
			}
			if _, err := os.Stat(file); err == nil {
				return filepath.Join(root, name), file, nil
			}
		}
	}
	return "", "", fmt.Errorf("%w: no %s under %s", gpu.ErrAbsent, libraryName, root)
}

// driverContainer is where a driver container mounts its root on the host.
const driverContainer = "/run/nvidia/driver"

// byLoader reports whether the dynamic loader finds the library.
func byLoader(o gpu.Options) bool { return o.HostRoot == "" && o.DriverRoot == "" }

// find finds the driver: its root on the host, the library's name and the file that it leads to. A driver
// container precedes what is installed on the host, which may have been left there by an earlier driver.
func find(o gpu.Options) (root, name, file string, err error) {
	roots := []string{o.DriverRoot}
	switch {
	case byLoader(o):
		roots = []string{"/"}
	case o.DriverRoot == "":
		roots = []string{driverContainer, "/"}
	}
	for _, root = range roots {
		if name, file, err = libraryIn(filepath.Join(o.HostRoot, root)); err == nil {
			return root, name, file, nil
		}
	}
	return root, "", "", fmt.Errorf("%w: no %s below %s", gpu.ErrAbsent, libraryName, strings.Join(roots, " or "))
}

// Root returns where the driver is installed on the host: / if it is not there yet.
func Root(o gpu.Options) string {
	root, _, _, _ := find(o) //nolint:dogsled // Without a library the last place counts.
	return root
}

// hookPaths returns where NVIDIA's toolkit has its CDI hook on a host: as its packages and as
// gpu-operator install it. The program nvidia-ctk has hooks too, and is not among them: a
// toolkit that has it alone is older than 1.16, and fails on hooks of today's specs.
func hookPaths() []string {
	return []string{"/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"}
}

// FindHook returns the path on the host of the first CDI hook that is there; empty if there is
// none. This process sees the host's files below root.
func FindHook(root string) string { return hostfile.Program(root, hookPaths()...) }
