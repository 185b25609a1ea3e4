//go:build unix

package sysfstest

import (
	"os"
	"path/filepath"
	"syscall"
)

// Hang makes an attribute one whose driver does not answer: a reader
// waits, in the kernel, until release. That answers all who wait and makes it an
// attribute with this text again.
func (t *Tree) Hang(name string) (release func(text string)) {
	t.t.Helper()
	t.Remove(name)
	t.Dir(filepath.Dir(name))
	path := filepath.Join(t.Root, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.t.Fatal(err)
	}
	return func(text string) {
		t.t.Helper()
		fifo, err := os.OpenFile(path, os.O_RDWR, 0) // Waits for no reader, and lets those go that wait for a writer.
		if err != nil {
			t.t.Fatal(err)
		}
		defer fifo.Close()
		if _, err := fifo.WriteString(text + "\n"); err != nil {
			t.t.Fatal(err)
		}
		t.Remove(name)
		t.Write(name, text)
	}
}
