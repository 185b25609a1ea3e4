//go:build cgo && linux

package nvml

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// searchedDirs returns the directories that nvcdi searches without being asked to.
func searchedDirs() []string {
	return []string{"usr/lib/" + triple(), "usr/lib64", "lib/" + triple(), "lib64"}
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
	root, name, file, err := find(l.options)
	p := place{root: filepath.Join(l.options.HostRoot, root), host: root}
	if err == nil && strings.HasPrefix(name, filepath.Join(p.root, gke)+"/") {
		p.root, p.host = filepath.Join(p.root, gke), filepath.Join(p.host, gke)
	}
	p.dev, p.hostDev = p.root, p.host
	if nodes, ok := l.hostNodes(); ok && !exists("/dev/nvidiactl", p.root) {
		p.dev, p.hostDev = nodes, nodes
	}
	// nvcdi searches some directories, and then the cache of the root's dynamic loader.
	// The names with the driver's version, by which it searches, are where the library is, which need
	// not be where its name is.
	if err == nil {
		dir, errRel := filepath.Rel(p.root, filepath.Dir(file))
		if errRel == nil && !slices.Contains(searchedDirs(), dir) {
			p.libraries = []string{filepath.Join(p.root, dir)}
		}
	}
	return p
}

// hostNodes returns the root of the host's device nodes, which nvcdi takes dev below.
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
	if _, _, file, err := find(l.options); err == nil {
		if info, err := os.Stat(filepath.Dir(file)); err == nil {
			text += fmt.Sprintf("%s %d\n", file, info.ModTime().UnixNano())
		}
	}
	return text
}
