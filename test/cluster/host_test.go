//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
