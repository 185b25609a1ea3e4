//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// metaPackage depends on Debian's newest kernel. The cloud flavor has no
// rdma_rxe.
const metaPackage = "linux-image-amd64"

// CacheDir is where kernels are kept: vm under HEDDLE_CACHE, else under heddle
// in the user's cache directory.
func CacheDir() (string, error) {
	if dir := os.Getenv("HEDDLE_CACHE"); dir != "" {
		return filepath.Join(dir, "vm"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory (set HEDDLE_CACHE): %w", err)
	}
	return filepath.Join(dir, "heddle", "vm"), nil
}

// Prepare returns a guest's kernel and modules from the cache, and fetches them
// with apt-get download if they are not there; nothing is installed. It may run
// several times at once. Progress goes to out. A [MissingError] means that this
// machine cannot: no QEMU, no apt, no network.
func Prepare(ctx context.Context, cacheDir string, out io.Writer) (*Guest, error) {
	if err := checkTools(); err != nil {
		return nil, err
	}
	name, version, err := newestKernel(ctx)
	if err != nil {
		// Empty package lists, or none: what is there will do.
		if guest := anyCached(cacheDir); guest != nil {
			fmt.Fprintf(out, "%v: using %s from the cache\n", err, guest.Version)
			return guest, nil
		}
		return nil, &MissingError{What: err.Error(), Remedy: "run apt-get update, on a Debian with the section main"}
	}
	key := name + "_" + strings.ReplaceAll(version, ":", "%") + rootsKey()
	if guest, err := load(filepath.Join(cacheDir, key)); err == nil {
		return guest, nil
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return nil, fmt.Errorf("kernel cache: %w", err)
	}
	work, err := os.MkdirTemp(cacheDir, "new-")
	if err != nil {
		return nil, fmt.Errorf("kernel cache: %w", err)
	}
	defer os.RemoveAll(work) // Renamed away when all went well.
	fmt.Fprintf(out, "fetching %s %s, about 70 to 110 MB\n", name, version)
	deb, err := download(ctx, name+"="+version, work)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "unpacking %s\n", filepath.Base(deb))
	ready := filepath.Join(work, "ready")
	if err := unpackPackage(ctx, deb, ready); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", filepath.Base(deb), err)
	}
	if err := os.Chmod(ready, 0o755); err != nil {
		return nil, fmt.Errorf("kernel cache: %w", err)
	}
	// Another process may have been faster; its work is as good.
	place := filepath.Join(cacheDir, key)
	renameErr := os.Rename(ready, place)
	guest, err := load(place)
	if err != nil {
		return nil, errors.Join(err, renameErr)
	}
	return guest, nil
}

// checkTools looks for everything that is not ours, before anything is fetched.
func checkTools() error {
	if runtime.GOARCH != "amd64" {
		return &MissingError{What: "the guest is a Linux on x86-64", Remedy: "run this there"}
	}
	var absent, install []string
	for _, tool := range [][2]string{
		{"qemu-system-x86_64", "qemu-system-x86"},
		{"apt-get", "apt, on Debian or Ubuntu"},
		{"apt-cache", "apt"},
		{"dpkg-deb", "dpkg"},
		{"depmod", "kmod"},
		{"modprobe", "kmod"},
		{"xz", "xz-utils"},
		{"zstd", "zstd"},
	} {
		if _, err := exec.LookPath(tool[0]); err != nil {
			absent, install = append(absent, tool[0]), append(install, tool[1])
		}
	}
	if len(absent) > 0 {
		return &MissingError{
			What:   "not on this machine: " + strings.Join(absent, ", "),
			Remedy: "install the packages " + strings.Join(install, ", "),
		}
	}
	return nil
}

// kernelFile is the last file that unpackPackage writes.
const kernelFile = "vmlinux"

// load reads a directory that unpackPackage wrote.
func load(dir string) (*Guest, error) {
	kernel := filepath.Join(dir, kernelFile)
	if _, err := os.Stat(kernel); err != nil {
		return nil, fmt.Errorf("kernel cache: %w", err)
	}
	modules, err := filepath.Glob(filepath.Join(dir, "modules", "*.ko"))
	if err != nil || len(modules) == 0 {
		return nil, fmt.Errorf("kernel cache: no modules in %s", dir)
	}
	slices.Sort(modules)
	return &Guest{Version: filepath.Base(dir), Kernel: kernel, Modules: modules}, nil
}

// anyCached is the newest kernel of the cache by time of arrival, or nil.
func anyCached(cacheDir string) *Guest {
	dirs, err := filepath.Glob(filepath.Join(cacheDir, "linux-image-*"+rootsKey()))
	if err != nil {
		return nil
	}
	var best *Guest
	var when int64
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue
		}
		if guest, err := load(dir); err == nil && info.ModTime().UnixNano() > when {
			best, when = guest, info.ModTime().UnixNano()
		}
	}
	return best
}
