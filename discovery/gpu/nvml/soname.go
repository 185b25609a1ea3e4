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
// It is for containers without that hook, with its create-symlinks and
// update-ldcache do the same: without either, no program that is linked with
// libcuda.so.1 starts.
//
// Nothing updates the loader's cache, so a library must be in a directory that
// the loader of the image searches. Debian's searches /usr/lib/TRIPLE, Red
// Hat's /usr/lib64: the names are mounted in both. A path of a mount is seen
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
		names := wellKnown(stem)
		if soname := sonameOf(m.HostPath, root); soname != "" {
			names = append(names, soname)
		}
		if short := stem + ".so"; exists(path.Join(path.Dir(m.HostPath), short), root) {
			names = append(names, short)
		}
		for _, d := range searched(dir) {
			for _, name := range names {
				file := path.Join(d, name)
				if taken[file] {
					continue
				}
				taken[file] = true
				more := *m
				more.ContainerPath = file
				mounts = append(mounts, &more)
			}
		}
	}
	return mounts
}

// wellKnown are names by which programs open a library although the driver does not install
// them; nvcdi's hook makes them.
func wellKnown(stem string) []string {
	switch stem {
	case "libcuda", "libnvidia-opticalflow":
		return []string{stem + ".so"}
	case "libGLX_nvidia":
		return []string{"libGLX_indirect.so.0"}
	}
	return nil
}

// searched returns a directory and those that the dynamic loaders of Debian and of
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

// below returns a path of the driver's as this process sees it.
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

// sonameOf returns the DT_SONAME of a library; empty if it has none or is another file.
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

// triple returns the directory of Debian's libraries of this architecture.
func triple() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}
