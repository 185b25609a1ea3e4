package hostfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.WriteFile(path("whole"), make([]byte, maxRead), 0o600), os.WriteFile(path("huge"), make([]byte, maxRead+1), 0o600),
		os.Symlink("/dev/zero", path("zero")), os.Symlink("whole", path("link")), os.Mkdir(path("dir"), 0o700), unix.Mkfifo(path("pipe"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if content, err := Read(path("whole")); err != nil || len(content) != maxRead {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	for _, name := range []string{"huge", "zero", "link", "dir", "pipe", "/dev/zero"} {
		file := name
		if !filepath.IsAbs(name) {
			file = path(name)
		}
		if _, err := Read(file); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, err := Read(path("absent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
	// A file of others is replaced.
	if err := Write(path("zero"), []byte("a"), 0o600, Quick); err != nil {
		t.Fatal(err)
	}
	if content, err := Read(path("zero")); err != nil || string(content) != "a" {
		t.Errorf("%q, %v", content, err)
	}
}
