package nvml

import (
	"cmp"
	"debug/elf"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"
)

// withSONAMEs adds to the mounts of versioned libraries (libcuda.so.550.54.15)
// the names by which programs find them: the SONAME (libcuda.so.1), and the
// name without a version where the host has it or nvcdi's hook would make it.
// It is for containers without that hook, whose create-symlinks and
// update-ldcache do the same: without either, no program that is linked with
// libcuda.so.1 starts.
//
// Nothing updates the loader's cache, so a library must be in a directory that
// the loader of the image searches. Debian's searches /usr/lib/TRIPLE, Red
// Hat's /usr/lib64: the SONAME is mounted in both. A path of a mount is seen
// below root by this process.
func withSONAMEs(mounts []*specs.Mount, root string) []*specs.Mount {
	taken := map[string]bool{}
	for _, m := range mounts {
		taken[m.ContainerPath] = true
	}
	for _, m := range slices.Clone(mounts) {
		dir, file := path.Split(m.ContainerPath)
		stem, version, ok := strings.Cut(file, ".so.")
		if !ok || !strings.Contains(version, ".") {
			continue
		}
		soname := sonameOf(m.HostPath, root)
		names := []string{}
		if soname != "" {
			for _, d := range searched(dir) {
				names = append(names, path.Join(d, soname))
			}
		}
		if short := stem + ".so"; wellKnown(stem) || exists(path.Join(path.Dir(m.HostPath), short), root) {
			names = append(names, path.Join(dir, short))
		}
		for _, name := range names {
			if taken[name] {
				continue
			}
			taken[name] = true
			more := *m
			more.ContainerPath = name
			mounts = append(mounts, &more)
		}
	}
	return mounts
}

// wellKnown are libraries that programs open without a version although the
// driver does not install that name; nvcdi's hook makes it.
func wellKnown(stem string) bool { return stem == "libcuda" || stem == "libnvidia-opticalflow" }

// searched are a directory and those that the dynamic loaders of Debian and of
// Red Hat search without a cache. Neither searches all of the other's, or GKE's
// and Talos' own.
func searched(dir string) []string {
	dirs := []string{path.Clean(dir)}
	for _, usual := range []string{"/usr/lib/" + triple(), "/usr/lib64"} {
		if usual != dirs[0] {
			dirs = append(dirs, usual)
		}
	}
	return dirs
}

// below is a path of the driver's as this process sees it.
func below(file, root string) string {
	root = cmp.Or(root, "/")
	if root == "/" || strings.HasPrefix(file, strings.TrimSuffix(root, "/")+"/") {
		return file
	}
	return filepath.Join(root, file)
}

func exists(file, root string) bool {
	_, err := os.Lstat(below(file, root))
	return err == nil
}

// sonameOf is the DT_SONAME of a library; empty if it has none, or is none.
func sonameOf(file, root string) string {
	f, err := elf.Open(below(file, root))
	if err != nil {
		return ""
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) == 0 || names[0] != path.Base(names[0]) {
		return ""
	}
	return names[0]
}

// triple is the directory of Debian's libraries of this architecture.
func triple() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}
