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
	// looked is true once the kernel was looked at, and preceded if it had no driver then
	// and none has answered since: the container was created before the driver came.
	looked, preceded bool
}

// look notes whether the process began before the driver came.
func (f *loaded) look(o gpu.Options) {
	if !f.looked {
		f.looked, f.preceded = true, len(bound(o)) == 0
	}
}

// reached notes that the driver answers.
func (f *loaded) reached() { f.missed, f.preceded = time.Time{}, false }

// bound returns the links to the GPUs that the kernel's driver has.
func bound(o gpu.Options) []string {
	links, _ := filepath.Glob(filepath.Join(o.SysfsRoot, "bus/pci/drivers/nvidia/*:*")) // The pattern is well-formed.
	return links
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

// stale reports that the installed library is another one than the loaded: below a
// driver's root, if there is one, also in another directory, as in the driver container of
// another distribution. One that is gone may be in the middle of an upgrade: what comes decides.
func (f *loaded) stale(o gpu.Options) error {
	if f.file == nil {
		return nil
	}
	path := f.path
	if !byLoader(o) {
		_, _, file, err := find(o)
		if err != nil {
			return nil //nolint:nilerr // It is gone.
		}
		path = file
	}
	now, err := os.Stat(path)
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
		gpu.ErrRestart, f.version, path)
}

// absent is the error of a library that is not there, finds no driver, or is of
// another version than the kernel module. With a driver in the kernel it becomes a
// reason to start again, after a while, where the next container may reach it: one whose
// library comes from the container runtime gets the one that is installed then. With a
// library below a driver root that helps only a container that was created before the
// driver came, and once: the device plugin has HCAs to serve too.
func (f *loaded) absent(o gpu.Options, err error) error {
	links := bound(o)
	if len(links) == 0 || !byLoader(o) && !f.preceded {
		f.missed = time.Time{}
		return err
	}
	if f.missed.IsZero() {
		f.missed = time.Now()
	}
	wait := gpu.DriverPatience
	if !f.preceded && f.version == "" {
		wait = gpu.LongDriverPatience
	}
	if time.Since(f.missed) < wait {
		return err
	}
	return fmt.Errorf("%w: the kernel's driver has %d GPUs, and for %s this container has not reached it: %w",
		gpu.ErrRestart, len(links), wait, err)
}

// mapped returns the link of the library's name beside the file that the process has
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
