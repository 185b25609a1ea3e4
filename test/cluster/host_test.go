//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, file, data string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSysctlsComeBackInAnyOrder(t *testing.T) {
	for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
		dir := t.TempDir()
		s := sysctls{proc: filepath.Join(dir, "sys"), record: filepath.Join(dir, "run", "sysctl.json")}
		value := write(t, filepath.Join(s.proc, "vm/overcommit_memory"), "0\n")
		for _, name := range []string{"a", "b"} {
			state := filepath.Join(dir, name)
			if err := errors.Join(os.Mkdir(state, 0o755), s.hold(t.Context(), state)); err != nil {
				t.Fatal(err)
			}
			write(t, value, "1\n") // What the kubelet does.
		}
		for i, name := range order {
			if err := s.release(t.Context(), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			want := []string{"1\n", "0"}[i]
			if got, err := os.ReadFile(value); err != nil || string(got) != want {
				t.Errorf("%v: after %s came down the value is %q, want %q (%v)", order, name, got, want, err)
			}
		}
		if _, err := os.Stat(filepath.Dir(s.record)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the record's directory is left: %v", err)
		}
	}
}

// TestSysctlsOfKilledRun: its holder's state was deleted by hand and never
// released; the values saved then are still the ones to restore.
func TestSysctlsOfKilledRun(t *testing.T) {
	dir := t.TempDir()
	s := sysctls{proc: filepath.Join(dir, "sys"), record: filepath.Join(dir, "run", "sysctl.json")}
	value := write(t, filepath.Join(s.proc, "kernel/panic"), "0\n")
	if err := s.hold(t.Context(), filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	write(t, value, "10\n")
	state := filepath.Join(dir, "next")
	if err := errors.Join(os.Mkdir(state, 0o755), s.hold(t.Context(), state), s.release(t.Context(), state)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(value); err != nil || string(got) != "0" {
		t.Errorf("value is %q, want 0 (%v)", got, err)
	}
}

// TestLimitOfInotify: clusters side by side need more than the default, which is there
// again after the last.
func TestLimitOfInotify(t *testing.T) {
	for _, tt := range []struct{ before, during string }{{"128\n", "1024"}, {"8192\n", "8192\n"}} {
		dir := t.TempDir()
		s := sysctls{proc: filepath.Join(dir, "sys"), record: filepath.Join(dir, "run", "sysctl.json")}
		value := write(t, filepath.Join(s.proc, inotifyInstances), tt.before)
		is := func(step, want string) {
			t.Helper()
			if got, err := os.ReadFile(value); err != nil || string(got) != want {
				t.Errorf("%s the limit is %q, want %q (%v)", step, got, want, err)
			}
		}
		if err := s.hold(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		is("with a cluster", tt.during)
		if err := s.release(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		is("after it", strings.TrimSpace(tt.before))
	}
}

func TestLockFileEndsWithContext(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "lock")
	unlock, err := lockFile(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := lockFile(ctx, file); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v, want deadline exceeded", err)
	}
	unlock()
	again, err := lockFile(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestParseStat(t *testing.T) {
	const line = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 100 5 184467"
	p, state, ok := parseStat(42, line)
	if !ok || state != 'S' || p != (process{pid: 42, start: 9876}) {
		t.Errorf("parseStat = %+v, %c, %t", p, state, ok)
	}
	for _, bad := range []string{"", "42 (x", "42 (x) S 1"} {
		if _, _, ok := parseStat(42, bad); ok {
			t.Errorf("parseStat(%q) succeeds", bad)
		}
	}
	// A program that executes another from a thread that is not its first is a
	// zombie with threads until the kernel has made that thread the first.
	for threads, want := range map[string]byte{"0": 'Z', "1": 'Z', "2": 'R', "11": 'R'} {
		zombie := "42 (x) Z 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 " + threads + " 0 777 0"
		if _, state, ok := parseStat(42, zombie); !ok || state != want {
			t.Errorf("a zombie with %s threads: state %c, %t, want %c", threads, state, ok, want)
		}
	}
}

// TestStopSparesReusedPID: a record whose start time differs is another process.
func TestStopSparesReusedPID(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "pid")
	if err := savePID(file, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	p, ok := loadPID(file)
	if !ok || !p.alive() {
		t.Fatalf("record is %+v, %t", p, ok)
	}
	other := p
	other.start--
	if err := other.stop(t.Context(), unix.SIGKILL, 0); err != nil || !p.alive() {
		t.Fatalf("a process with another start time was stopped (%v)", err)
	}
	if err := p.stop(t.Context(), unix.SIGTERM, time.Second); err != nil {
		t.Fatal(err)
	}
	if p.alive() {
		t.Error("still alive") // It is a zombie until Wait, which does not count.
	}
	_ = cmd.Wait()
}

func TestParseHierarchy(t *testing.T) {
	v1 := hierarchy{dir: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu", "cpuacct"}}
	for line, want := range map[string]*hierarchy{
		"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct":    &v1,
		"40 31 0:37 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd": {dir: "/sys/fs/cgroup/systemd", controllers: []string{"xattr", "systemd"}},
		"41 31 0:38 / /absent/unified rw,relatime - cgroup2 cgroup2 rw":                         {dir: "/absent/unified", v2: true},
		"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755":                     nil,
		"":      nil,
		"a - b": nil,
	} {
		got, ok := parseHierarchy(line)
		if ok != (want != nil) {
			t.Errorf("%q: ok = %t", line, ok)
			continue
		}
		if ok {
			if diff := cmp.Diff(*want, got, cmp.AllowUnexported(hierarchy{})); diff != "" {
				t.Errorf("%q (-want +got):\n%s", line, diff)
			}
		}
	}
}

// fakeMachine has everything.
func fakeMachine(t *testing.T) machine {
	t.Helper()
	root := t.TempDir()
	for file, data := range map[string]string{
		"proc/self/status":              "CapEff:\t000001ffffffffff\n",
		"proc/self/mountinfo":           "1 1 0:1 / /c rw - cgroup c rw,cpu,cpuset,memory,pids\n",
		"proc/meminfo":                  "MemTotal: 9 kB\nMemAvailable:    8000000 kB\n",
		"proc/filesystems":              "nodev\toverlay\n",
		"proc/sys/kernel/osrelease":     "6.1.0\n",
		"lib/modules/6.1.0/modules.dep": "kernel/drivers/net/veth.ko.xz:\nkernel/net/bridge/bridge.ko:\n",
		"usr/include/seccomp.h":         "",
		"usr/lib/libseccomp.a":          "",
	} {
		write(t, filepath.Join(root, file), data)
	}
	return machine{
		root: root, lookPath: func(string) bool { return true },
		freeDisk: func(string) (uint64, error) { return (DiskGiB + 1) * gib, nil },
	}
}

func TestPreflight(t *testing.T) {
	tests := map[string]struct {
		change func(m *machine)
		want   []string // parts of What, in order
	}{
		"all there":      {func(*machine) {}, nil},
		"not root":       {func(m *machine) { m.uid = 1000 }, []string{"root"}},
		"capability":     {func(m *machine) { write(t, m.path("proc/self/status"), "CapEff: 0000000000000000\n") }, []string{"CAP_SYS_ADMIN"}},
		"little memory":  {func(m *machine) { write(t, m.path("proc/meminfo"), "MemAvailable: 1048576 kB\n") }, []string{"memory: 1.0 GiB of 3"}},
		"cold disk":      {func(m *machine) { m.freeDisk = func(string) (uint64, error) { return 5 * gib, nil } }, []string{fmt.Sprintf("disk: 5.0 GiB of %d", DiskGiB)}},
		"kernel":         {func(m *machine) { write(t, m.path("lib/modules/6.1.0/modules.dep"), "x/veth.ko:\n") }, []string{"bridge"}},
		"silent kernel":  {func(m *machine) { _ = os.RemoveAll(m.path("lib")) }, nil},
		"no controllers": {func(m *machine) { write(t, m.path("proc/self/mountinfo"), "") }, []string{"cpu", "cpuset", "memory", "pids"}},
		"no programs":    {func(m *machine) { m.lookPath = func(string) bool { return false } }, []string{"program go", "program mount", "program umount", "gcc", "apt-get", "dpkg-deb"}},
		"everything at once": {func(m *machine) {
			m.uid = 1
			m.freeDisk = func(string) (uint64, error) { return 0, nil }
			write(t, m.path("proc/meminfo"), "MemAvailable: 1 kB\n")
		}, []string{"root", "memory", "disk"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := fakeMachine(t)
			tc.change(&m)
			got := m.missing(t.TempDir())
			if len(got) != len(tc.want) {
				t.Fatalf("missing %+v, want %q", got, tc.want)
			}
			for i, one := range got {
				if !strings.Contains(one.What, tc.want[i]) || one.Remedy == "" {
					t.Errorf("missing %+v, want %q and a remedy", one, tc.want[i])
				}
			}
		})
	}
}

func TestPreflightWarm(t *testing.T) {
	m := fakeMachine(t)
	m.lookPath = func(name string) bool { return name == "go" || strings.HasSuffix(name, "mount") }
	m.freeDisk = func(string) (uint64, error) { return 2 * gib, nil }
	cache := t.TempDir()
	for _, part := range []string{"kubernetes", "runc", "images"} {
		write(t, filepath.Join(cache, "bin", part+"-0123456789ab", "x"), "")
	}
	if got := m.missing(cache); len(got) > 0 {
		t.Errorf("a machine with everything built lacks %+v", got)
	}
	if got := m.missing("/var/lib/x"); len(got) == 0 {
		t.Error("a cache below /var/lib is accepted")
	}
}
