//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// patience is how long a process without the library waits while the kernel has
// the driver. A container whose library comes from the container runtime gets
// it when it is created, or never.
const patience = time.Minute

// loaded is the library that this process has. It stays for the life of the
// process, since glibc never unloads it: after an upgrade of the driver, a
// process with the old library answers "driver/library version mismatch" for
// ever.
type loaded struct {
	path string
	file os.FileInfo
	// version is the driver's, once a session was there, cuda that of CUDA.
	version, cuda string
	// missed is since when the kernel has a driver that this process has no
	// library of; zero if it is not so.
	missed time.Time
}

// note remembers which file was loaded. One that the dynamic loader found is in
// the process' map, by its versioned name.
func (f *loaded) note(path string) {
	if f.file != nil {
		return
	}
	if path == "" {
		path = mapped()
	}
	// The file has gone already: then it is seen as replaced when another comes.
	if info, err := os.Stat(path); err == nil {
		f.path, f.file = path, info
	}
}

// stale reports that the installed library is another one than the loaded. One
// that is gone may be in the middle of an upgrade: what comes decides.
func (f *loaded) stale() error {
	if f.file == nil {
		return nil
	}
	now, err := os.Stat(f.path)
	if err != nil {
		return nil //nolint:nilerr // It is gone.
	}
	// A file that was mounted into the container and deleted on the host has no
	// name left there.
	same := os.SameFile(now, f.file) && now.ModTime().Equal(f.file.ModTime()) && now.Size() == f.file.Size()
	if s, ok := now.Sys().(*syscall.Stat_t); same && ok && s.Nlink > 0 {
		return nil
	}
	return fmt.Errorf("%w: the driver was upgraded: this process has the library of %s, and %s is another one",
		gpu.ErrRestart, f.version, f.path)
}

// absent is the error of a library that is not there, finds no driver, or is of
// another version than the kernel module. With a library of the container runtime
// and a driver in the kernel it becomes a reason to start again, after a while:
// the next container gets the library that is installed then.
func (f *loaded) absent(o gpu.Options, err error) error {
	bound, _ := filepath.Glob(filepath.Join(o.SysfsRoot, "bus/pci/drivers/nvidia/*:*")) // The pattern is well-formed.
	if o.DriverRoot != "" || len(bound) == 0 {
		f.missed = time.Time{}
		return err
	}
	if f.missed.IsZero() {
		f.missed = time.Now()
	}
	if time.Since(f.missed) < patience {
		return err
	}
	return fmt.Errorf("%w: the kernel's driver has %d GPUs, and for %s this container has not reached it: %w",
		gpu.ErrRestart, len(bound), patience, err)
}

// mapped is the link of the library's name beside the file that the process has
// mapped; empty if it has none.
func mapped() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	stem := strings.TrimSuffix(libraryName, "1")
	for line := range strings.Lines(string(maps)) {
		if i := strings.IndexByte(line, '/'); i >= 0 && strings.HasPrefix(filepath.Base(line[i:]), stem) {
			return filepath.Join(filepath.Dir(line[i:]), libraryName)
		}
	}
	return ""
}
