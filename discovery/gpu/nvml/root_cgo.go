//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// libraryName is the name that every driver package installs.
const libraryName = "libnvidia-ml.so.1"

// libraryIn finds the library under a driver's root, in the directories of
// Debian's and Red Hat's packages and of driver containers. The dynamic loader
// does not look there, and LD_LIBRARY_PATH would bring the host's libc along.
func libraryIn(root string) (string, error) {
	dirs := []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"}
	for _, dir := range dirs {
		path := filepath.Join(root, dir, libraryName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s under %s", ErrAbsent, libraryName, root)
}

// load makes the interface on first use: a driver container may mount its root
// after the daemon started.
func (l *library) load() (nvml.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.api != nil {
		return l.api, nil
	}
	if l.root == "" {
		l.api = nvml.New()
		return l.api, nil
	}
	path, err := libraryIn(l.root)
	if err != nil {
		return nil, err
	}
	l.api = nvml.New(nvml.WithLibraryPath(path))
	return l.api, nil
}
