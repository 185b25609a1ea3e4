package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFindHook(t *testing.T) {
	root := t.TempDir()
	program := func(path string, mode os.FileMode) {
		t.Helper()
		file := filepath.Join(root, path)
		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, mode), os.Chmod(file, mode))
		if err != nil {
			t.Fatal(err)
		}
	}
	found := func(what, want string) {
		t.Helper()
		if got := FindHook(root); got != want {
			t.Errorf("%s: found %q, want %q", what, got, want)
		}
	}
	const packaged, operators = "/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook"
	found("an empty host", "")
	program("/usr/bin/nvidia-ctk", 0o755)
	found("an old toolkit", "")
	program(packaged, 0o644)
	found("a file that is not executable", "")
	program("/var/usrlocal/nvidia/toolkit/nvidia-cdi-hook", 0o755)
	// As on hosts with a read-only /usr.
	if err := os.Symlink("/var/usrlocal", filepath.Join(root, "usr/local")); err != nil {
		t.Fatal(err)
	}
	found("gpu-operator's, by an absolute link of the host", operators)
	program(packaged, 0o755)
	found("the package's and gpu-operator's", packaged)
	if err := os.Remove(filepath.Join(root, packaged)); err != nil {
		t.Fatal(err)
	}
	found("the package was removed", operators)
}
