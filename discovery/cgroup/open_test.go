package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOpeners(t *testing.T) {
	p := Proc{Root: t.TempDir()}
	process := func(pid, command string, open ...string) {
		t.Helper()
		dir := filepath.Join(p.Root, pid, "fd")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.Root, pid, "comm"), []byte(command+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for i, path := range open {
			if err := os.Symlink(path, filepath.Join(dir, string(rune('0'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	process("20", "dcgm", "/dev/null", "/run/nvidia/driver/dev/nvidia1", "/run/nvidia/driver/dev/nvidia0")
	process("7", "train", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia0", "socket:[1]")
	process("8", "sh", "/dev/null", "/usr/bin/nvidia-smi")
	process("self", "self", "/dev/nvidia0")
	// A process that has ended has no descriptors.
	if err := os.Mkdir(filepath.Join(p.Root, "9"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, hidden, err := p.Openers([]string{"/dev/nvidia"})
	want := []Opener{
		{PID: 7, Command: "train", Paths: []string{"/dev/nvidia0", "/dev/nvidiactl"}},
		{PID: 20, Command: "dcgm", Paths: []string{"/run/nvidia/driver/dev/nvidia0", "/run/nvidia/driver/dev/nvidia1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || hidden != 0 || err != nil {
		t.Errorf("%d hidden, %v (-want +got):\n%s", hidden, err, diff)
	}
	// What cannot be listed is not taken for a process without descriptors.
	if err := os.RemoveAll(filepath.Join(p.Root, "8", "fd")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.Root, "8", "fd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, hidden, err = p.Openers([]string{"/dev/nvidia"}); hidden != 1 || err != nil {
		t.Errorf("%d hidden, %v, want one", hidden, err)
	}
	if _, _, err := (Proc{Root: filepath.Join(p.Root, "none")}).Openers(nil); err == nil {
		t.Error("a missing procfs returns no error")
	}
}
