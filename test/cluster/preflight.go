//go:build linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Missing is one thing this machine lacks, and what to do about it.
type Missing struct {
	What   string
	Remedy string
}

// What Up needs: available memory, since linking Kubernetes takes 2.4 GiB, and free
// disk for modules, Go's build cache and the programs, the first time.
const (
	MemoryGiB = 3
	DiskGiB   = 14
)

const gib = 1 << 30

// Preflight lists everything that would keep Up from working, at once. Cache is
// where things are built and kept; empty means DefaultCache.
func Preflight(cache string) []Missing {
	if cache == "" {
		dir, err := DefaultCache()
		if err != nil {
			return []Missing{{"a cache directory: " + err.Error(), "set HEDDLE_CACHE"}}
		}
		cache = dir
	}
	var all []Missing
	if err := checkPlace(cache); err != nil {
		all = append(all, Missing{err.Error(), "set HEDDLE_CACHE to a directory such as /var/cache/heddle"})
	}
	return slices.Concat(all, privileges(), missingControllers(), missingModules(), memory(), disk(cache), tools(cache))
}

func privileges() []Missing {
	if os.Geteuid() != 0 {
		return []Missing{{"root", "run it with sudo -E; namespaces, mounts and cgroups need it"}}
	}
	const sysAdmin = 21
	caps, err := strconv.ParseUint(field("/proc/self/status", "CapEff:"), 16, 64)
	if err == nil && caps&(1<<sysAdmin) == 0 {
		return []Missing{{"the capability CAP_SYS_ADMIN", "in a container, run it with --privileged"}}
	}
	return nil
}

// missingControllers lists the cgroup controllers that the kubelet requires and the host lacks.
func missingControllers() (all []Missing) {
	hierarchies, err := readHierarchies("/proc/self/mountinfo")
	if err != nil {
		return []Missing{{err.Error(), "mount /proc"}}
	}
	for _, want := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.ContainsFunc(hierarchies, func(h hierarchy) bool { return h.has(want) }) {
			all = append(all, Missing{
				"the cgroup controller " + want,
				"mount cgroup2 at /sys/fs/cgroup, or the v1 hierarchy; check cgroup_disable= on the kernel's command line",
			})
		}
	}
	for _, h := range hierarchies {
		if unix.Access(h.dir, unix.W_OK) != nil {
			all = append(all, Missing{"a writable " + h.dir, "mount -o remount,rw " + h.dir})
		}
	}
	return all
}

// missingModules are the file system and the interfaces of pods that the kernel has neither built in nor as
// modules, on a machine that shows that.
func missingModules() (all []Missing) {
	known, _ := os.ReadFile("/proc/filesystems")
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil
	}
	pattern := filepath.Join("/lib/modules", strings.TrimSpace(string(release)), "modules.[bd]*")
	lists, _ := filepath.Glob(pattern) // It is well-formed.
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		known = append(known, text...)
	}
	for _, module := range []string{"overlay", "bridge", "veth"} {
		if len(lists) > 0 && !isThere("/sys/module/"+module) && !strings.Contains(string(known), "/"+module+".ko") &&
			!strings.Contains(string(known), "\t"+module+"\n") {
			all = append(all, Missing{"the kernel module " + module, "modprobe " + module})
		}
	}
	return all
}

func memory() []Missing {
	kib, err := strconv.ParseUint(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable:"), " kB"), 10, 64)
	if err == nil && kib*1024 < MemoryGiB*gib {
		return []Missing{{
			fmt.Sprintf("memory: %.1f GiB of %d GiB are available", float64(kib)/(1<<20), MemoryGiB),
			"linking Kubernetes takes 2.4 GiB; end other programs or use a larger machine",
		}}
	}
	return nil
}

// built reports whether the cache holds some version of a part.
func built(cache, part string) bool {
	found, _ := filepath.Glob(filepath.Join(cache, "bin", part+"-????????????")) // Only a bad pattern is an error.
	return len(found) > 0
}

// disk looks at the nearest directory of the cache that exists.
func disk(cache string) []Missing {
	need, why := uint64(DiskGiB*gib), "modules, Go's build cache and the programs"
	if Prebuilt() != "" || built(cache, "kubernetes") {
		need, why = gib, "the clusters' state"
	}
	dir := cache
	for !isThere(dir) {
		dir = filepath.Dir(dir)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bavail*uint64(st.Bsize) >= need {
		return nil
	}
	return []Missing{{
		fmt.Sprintf("disk: %.1f GiB of %d GiB are free for %s", float64(st.Bavail*uint64(st.Bsize))/gib, need/gib, why),
		"free some, or set HEDDLE_CACHE, GOCACHE and GOMODCACHE to a larger disk",
	}}
}

func tools(cache string) (all []Missing) {
	need := func(wanted bool, name, remedy string) {
		if _, err := exec.LookPath(name); wanted && err != nil {
			all = append(all, Missing{"the program " + name, remedy})
		}
	}
	builds := Prebuilt() == ""
	need(builds, "go", "install Go 1.26 or later and put it in PATH (with sudo: sudo -E env PATH=$PATH ...)")
	// The kubelet runs them for the volumes of pods.
	need(true, "mount", "apt-get install mount")
	need(true, "umount", "apt-get install mount")
	runc := builds && !built(cache, "runc")
	need(runc, "gcc", "apt-get install gcc libc6-dev")
	_, _, seccomp := findSeccomp("/")
	_, err := exec.LookPath("busybox")
	busybox := builds && !built(cache, "images") && err != nil
	for _, name := range []string{"apt-get", "dpkg-deb"} {
		need(runc && !seccomp, name, "install libseccomp's header and static library (libseccomp.a)")
		need(busybox, name, "install a static busybox")
	}
	return all
}

// field is what follows a key at the start of a line, or empty.
func field(file, key string) string {
	text, _ := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
