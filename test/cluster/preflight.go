//go:build linux

package cluster

import (
	"bufio"
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
	m := machine{root: "/", uid: os.Geteuid(), lookPath: func(name string) bool {
		_, err := exec.LookPath(name)
		return err == nil
	}, freeDisk: freeDisk, prebuilt: Prebuilt() != ""}
	return m.missing(cache)
}

// machine is what the checks look at; tests replace it.
type machine struct {
	root     string
	uid      int
	lookPath func(name string) bool
	freeDisk func(dir string) (uint64, error)
	// prebuilt is a machine that builds nothing: [Prebuilt].
	prebuilt bool
}

func (m machine) missing(cache string) []Missing {
	var all []Missing
	for _, check := range []func(string) []Missing{
		m.privileges, m.cgroups, m.kernel, m.memory, m.disk, m.tools, place,
	} {
		all = append(all, check(cache)...)
	}
	return all
}

func place(cache string) []Missing {
	if err := checkPlace(cache); err != nil {
		return []Missing{{err.Error(), "set HEDDLE_CACHE to a directory such as /var/cache/heddle"}}
	}
	return nil
}

func (m machine) path(p string) string { return filepath.Join(m.root, p) }

func (m machine) privileges(string) []Missing {
	if m.uid != 0 {
		return []Missing{{"root", "run it with sudo -E; namespaces, mounts and cgroups need it"}}
	}
	const sysAdmin = 21
	value := field(m.path("/proc/self/status"), "CapEff:")
	if caps, err := strconv.ParseUint(value, 16, 64); err == nil && caps&(1<<sysAdmin) == 0 {
		return []Missing{{"the capability CAP_SYS_ADMIN", "in a container, run it with --privileged"}}
	}
	return nil
}

// cgroups looks for the controllers that the kubelet insists on.
func (m machine) cgroups(string) []Missing {
	hierarchies, err := readHierarchies(m.path("/proc/self/mountinfo"))
	if err != nil {
		return []Missing{{err.Error(), "mount /proc"}}
	}
	var all []Missing
	for _, want := range []string{"cpu", "cpuset", "memory", "pids"} {
		if !slices.ContainsFunc(hierarchies, func(h hierarchy) bool { return h.has(want) }) {
			all = append(all, Missing{
				"the cgroup controller " + want,
				"mount cgroup2 at /sys/fs/cgroup, or the v1 hierarchy; check cgroup_disable= on the kernel's command line",
			})
		}
	}
	for _, h := range hierarchies {
		if m.root == "/" && unix.Access(h.dir, unix.W_OK) != nil {
			all = append(all, Missing{"a writable " + h.dir, "mount -o remount,rw " + h.dir})
		}
	}
	return all
}

// kernel looks for the file system and the interfaces of pods.
func (m machine) kernel(string) []Missing {
	var all []Missing
	for _, module := range []string{"overlay", "bridge", "veth"} {
		if known, have := m.hasModule(module); known && !have {
			all = append(all, Missing{"the kernel module " + module, "modprobe " + module})
		}
	}
	return all
}

// hasModule reports whether the kernel has a feature, loaded, built in or loadable;
// known is false when this machine does not show it.
func (m machine) hasModule(name string) (known, have bool) {
	if _, err := os.Stat(m.path("/sys/module/" + name)); err == nil {
		return true, true
	}
	if data, err := os.ReadFile(m.path("/proc/filesystems")); err == nil &&
		slices.Contains(strings.Fields(string(data)), name) {
		return true, true
	}
	release, err := os.ReadFile(m.path("/proc/sys/kernel/osrelease"))
	if err != nil {
		return false, false
	}
	dir := m.path("/lib/modules/" + strings.TrimSpace(string(release)))
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		data, err := os.ReadFile(filepath.Join(dir, list))
		if err != nil {
			continue
		}
		known = true
		have = have || strings.Contains(string(data), "/"+name+".ko")
	}
	return known, have
}

func (m machine) memory(string) []Missing {
	value := strings.TrimSuffix(field(m.path("/proc/meminfo"), "MemAvailable:"), " kB")
	kib, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
	if err == nil && kib*1024 < MemoryGiB*gib {
		return []Missing{{
			fmt.Sprintf("memory: %.1f GiB of %d GiB are available", float64(kib)/(1<<20), MemoryGiB),
			"linking Kubernetes takes 2.4 GiB; end other programs or use a larger machine",
		}}
	}
	return nil
}

// built reports whether the cache holds some version of a part.
func (machine) built(cache, part string) bool {
	found, _ := filepath.Glob(filepath.Join(cache, "bin", part+"-????????????")) // Only a bad pattern is an error.
	return len(found) > 0
}

func (m machine) disk(cache string) []Missing {
	need, why := uint64(DiskGiB*gib), "modules, Go's build cache and the programs"
	if m.prebuilt || m.built(cache, "kubernetes") {
		need, why = gib, "the clusters' state"
	}
	free, err := m.freeDisk(cache)
	if err == nil && free < need {
		return []Missing{{
			fmt.Sprintf("disk: %.1f GiB of %d GiB are free for %s", float64(free)/gib, need/gib, why),
			"free some, or set HEDDLE_CACHE, GOCACHE and GOMODCACHE to a larger disk",
		}}
	}
	return nil
}

// freeDisk looks at the nearest directory that exists.
func freeDisk(dir string) (uint64, error) {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if dir == filepath.Dir(dir) {
			return 0, err
		}
	}
}

func (m machine) tools(cache string) []Missing {
	var all []Missing
	need := func(name, remedy string) {
		if !m.lookPath(name) {
			all = append(all, Missing{"the program " + name, remedy})
		}
	}
	if !m.prebuilt {
		need("go", "install Go 1.26 or later and put it in PATH (with sudo: sudo -E env PATH=$PATH ...)")
	}
	// The kubelet runs them for the volumes of pods.
	need("mount", "apt-get install mount")
	need("umount", "apt-get install mount")
	if m.prebuilt {
		return all
	}
	if !m.built(cache, "runc") {
		need("gcc", "apt-get install gcc libc6-dev")
		if _, _, ok := findSeccomp(m.root); !ok {
			need("apt-get", "install libseccomp's header and static library (libseccomp.a)")
			need("dpkg-deb", "install libseccomp's header and static library (libseccomp.a)")
		}
	}
	if !m.built(cache, "images") && !m.lookPath("busybox") {
		need("apt-get", "install a static busybox")
		need("dpkg-deb", "install a static busybox")
	}
	return all
}

// field is what follows a key at the start of a line, or empty.
func field(file, key string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), key); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
