package hostfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestProgram(t *testing.T) {
	root := t.TempDir()
	write := func(path string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(path, to string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/text", 0o644)
	write("opt/program", 0o755)
	link("usr/bin/program", "/etc/alternatives/program")
	link("etc/alternatives/program", "/opt/program")
	link("usr/bin/outside", "../../../../../../../../../bin/sh")
	link("usr/bin/gone", "/opt/gone")
	link("usr/bin/loop", "loop")
	paths := []string{"/usr/bin/text", "/usr/bin/outside", "/usr/bin/gone", "/usr/bin/loop", "/opt"}
	if got := Program(root, paths...); got != "" {
		t.Errorf("found %q", got)
	}
	if got := Program(root, append(paths, "/usr/bin/program", "/opt/program")...); got != "/usr/bin/program" {
		t.Errorf("found %q", got)
	}
	if got, err := Path(root, "/usr/bin/program"); got != filepath.Join(root, "opt/program") || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := Path("", "/proc/self/../version"); got == "" || err != nil {
		t.Errorf("without a root: %q, %v", got, err)
	}
}
