//go:build cgo && linux

package nvml

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// libraryName is the name that every driver package installs.
const libraryName = "libnvidia-ml.so.1"

// gke is where the installer of Google's images puts a driver. It is the root of
// an installation: bin, lib64 and vulkan are below it. Nodes are in the host's /dev.
const gke = "home/kubernetes/bin/nvidia"

// libraryDirs are where drivers have their libraries, below their root: the
// packages of Debian, Red Hat and Arch, driver containers, Talos' extension, and a driver
// with a directory of its own.
func libraryDirs() []string {
	return []string{
		"usr/lib/" + triple(), "usr/lib64", "usr/lib", "lib/" + triple(), "lib64", "lib", "usr/local/glibc/usr/lib",
		"usr/local/nvidia/lib64",
	}
}

// searchedDirs are those of them that nvcdi searches without being asked to.
func searchedDirs() []string {
	return []string{"usr/lib/" + triple(), "usr/lib64", "lib/" + triple(), "lib64"}
}

// libraryIn finds the library under a driver's root. The dynamic loader does not
// look there, and LD_LIBRARY_PATH would bring the host's libc along.
func libraryIn(root string) (string, error) {
	for _, at := range []string{root, filepath.Join(root, gke)} {
		for _, dir := range libraryDirs() {
			path := filepath.Join(at, dir, libraryName)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%w: no %s under %s", gpu.ErrAbsent, libraryName, root)
}

// place is where a driver is on this node.
type place struct {
	// root is the driver's as this process sees it, host as the container runtime does.
	root, host string
	// libraries are directories for nvcdi to search, where it would not.
	libraries []string
	// dev is the root of the device nodes: dev/nvidiactl is below it. It is the
	// driver's, or one that has the same path for the container runtime.
	dev, hostDev string
}

// place looks where the driver is now: its root may be mounted, or filled, later.
func (l *Library) place() place {
	p := place{root: cmp.Or(l.options.DriverRoot, "/")}
	p.host = cmp.Or(l.options.HostDriverRoot, p.root)
	library, err := libraryIn(p.root)
	if err == nil && strings.HasPrefix(library, filepath.Join(p.root, gke)+"/") {
		p.root, p.host = filepath.Join(p.root, gke), filepath.Join(p.host, gke)
	}
	p.dev, p.hostDev = p.root, p.host
	if nodes, ok := l.hostNodes(); ok && !exists("/dev/nvidiactl", p.root) {
		p.dev, p.hostDev = nodes, nodes
	}
	// nvcdi searches some directories, and then the cache of the root's dynamic loader.
	if dir := libraryDir(p.root, library); err == nil && !slices.Contains(searchedDirs(), dir) {
		p.libraries = []string{filepath.Join(p.root, dir)}
	}
	return p
}

// libraryDir is the directory below a driver's root of the file that a library's name leads
// to: only there are the names with the driver's version, by which nvcdi searches.
// Debian's packages, for one, have links in the directories of the loader.
func libraryDir(root, library string) string {
	relative, err := filepath.Rel(root, library)
	if err != nil {
		return ""
	}
	file, err := securejoin.SecureJoin(root, relative)
	if err != nil {
		return filepath.Dir(relative)
	}
	if file, err = filepath.Rel(root, file); err != nil {
		return filepath.Dir(relative)
	}
	return filepath.Dir(file)
}

// hostNodes is the root of the host's device nodes, which nvcdi takes dev below.
func (l *Library) hostNodes() (string, bool) {
	root, ok := strings.CutSuffix(filepath.Clean(cmp.Or(l.options.DevRoot, "/dev")), "/dev")
	return cmp.Or(root, "/"), ok
}

// imexDir has the channels' nodes, below /dev.
const imexDir = "nvidia-caps-imex-channels"

// Fingerprint implements [gpu.EditsGenerator]: what nvcdi and this package look
// for on the node, and the directory of the libraries, which a package or a
// driver container may still be filling.
func (l *Library) Fingerprint() string {
	p := l.place()
	var patterns []string
	for _, name := range []string{
		"nvidia*", "nvidia-caps/*", imexDir + "/*", "gdrdrv", "dri/*",
	} {
		patterns = append(patterns, filepath.Join(p.dev, "dev", name))
	}
	for _, name := range []string{
		"run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket",
		"var/run/nvidia-persistenced/socket", "var/run/nvidia-fabricmanager/socket",
		"tmp/nvidia-mps", "run/udev", "etc/cufile.json",
	} {
		patterns = append(patterns, filepath.Join(p.root, name))
	}
	hook, _ := l.hook()
	text := gpu.Fingerprint(patterns...) + hook + "\n"
	if library, err := libraryIn(p.root); err == nil {
		if info, err := os.Stat(filepath.Dir(library)); err == nil {
			text += fmt.Sprintf("%s %d\n", library, info.ModTime().UnixNano())
		}
	}
	return text
}
