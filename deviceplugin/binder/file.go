package binder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempEnd ends the names of files that are being written. It is neither .json
// nor .yaml, so that no runtime reads them; and they lie in the directory
// itself, because the CDI caches in use (container-device-interface up to
// 1.1.0, in containerd 2.2) renew themselves on the event of a file renamed
// away and not of one that appears: "eventMask := fsnotify.Rename |
// fsnotify.Remove | fsnotify.Write", pkg/cdi/cache.go.
const (
	tempStart = ".heddle-"
	tempEnd   = ".tmp"
)

// replace writes a file whole or not at all.
func replace(dir, name string, content []byte) error {
	temp, err := os.CreateTemp(dir, tempStart+"*"+tempEnd)
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	// Containers of any user read what is mounted into them.
	err = errors.Join(err, temp.Chmod(0o644), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return err
}

// put brings a file to this content, and leaves it alone if it has it.
func put(dir, name string, content []byte) error {
	if old, err := os.ReadFile(filepath.Join(dir, name)); err == nil && string(old) == string(content) {
		return nil
	}
	return write(dir, name, content)
}

// write is replace where there may be no directory.
func write(dir, name string, content []byte) error {
	err := replace(dir, name, content)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Runtimes and containers read what is in it.
		return err
	}
	return replace(dir, name, content)
}

// remove removes a file, if it is there.
func remove(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// filesIn names the files in dir between start and end, none if there is no dir.
func filesIn(dir, start, end string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look into %s: %w", dir, err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), start) && strings.HasSuffix(e.Name(), end) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
