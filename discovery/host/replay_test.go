package host

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/heddle-dev/heddle/api/machine"
)

// dumpOf is a machine with one GPU of a product.
func dumpOf(t *testing.T, product string) []byte {
	t.Helper()
	b, err := machine.Encode(&machine.Machine{
		Version: machine.Version, Node: "dgx042",
		GPUs: []machine.GPU{{
			UUID: "GPU-0", PCI: "0000:18:00.0", Product: product, Health: machine.Health{State: machine.Healthy},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestLoadDump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.json")
	good := dumpOf(t, "NVIDIA H20")
	write(t, path, good)
	m, err := LoadDump(path)
	if err != nil || m.GPUs[0].Product != "NVIDIA H20" || m.Node != "dgx042" {
		t.Fatalf("%+v, %v", m, err)
	}
	write(t, path, good[:len(good)/2])
	if _, err := LoadDump(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "line ") {
		t.Errorf("half a file: %v", err)
	}
	write(t, path, bytes.Repeat([]byte(" "), machine.MaxDump+100))
	if _, err := LoadDump(path); err == nil {
		t.Error("a file that is too large was taken")
	}
	if _, err := LoadDump(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

// started is a running replay of path.
func started(t *testing.T, path string) *Replay {
	t.Helper()
	r := NewReplay(path, "node7", slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	await(t, r, "NVIDIA H20")
	return r
}

// await blocks until the machine changes, and wants a product in it.
func await(t *testing.T, r *Replay, product string) {
	t.Helper()
	<-r.Changed()
	if m := r.Machine(); m.GPUs[0].Product != product || m.Node != "node7" {
		t.Fatalf("product %q, node %q", m.GPUs[0].Product, m.Node)
	}
}

func TestEditedInPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "m.json")
		write(t, path, dumpOf(t, "NVIDIA H20"))
		r := started(t, path)
		first := r.Machine()
		write(t, path, dumpOf(t, "NVIDIA L40S"))
		await(t, r, "NVIDIA L40S")
		if first.GPUs[0].Product != "NVIDIA H20" {
			t.Error("the old machine was written to")
		}
	})
}

func TestReplacedByRename(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "m.json")
		write(t, path, dumpOf(t, "NVIDIA H20"))
		r := started(t, path)
		for _, product := range []string{"NVIDIA L40S", "NVIDIA B200"} {
			write(t, filepath.Join(dir, ".new"), dumpOf(t, product))
			rename(t, filepath.Join(dir, ".new"), path)
			await(t, r, product)
		}
	})
}

// The kubelet swaps ..data; the file itself is a link that does not change.
func TestConfigMapSwap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for version, product := range map[string]string{"..1": "NVIDIA H20", "..2": "NVIDIA L40S"} {
			if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, version, "m.json"), dumpOf(t, product))
		}
		symlink(t, "..1", filepath.Join(dir, "..data"))
		symlink(t, "..data/m.json", filepath.Join(dir, "m.json"))
		r := started(t, filepath.Join(dir, "m.json"))
		symlink(t, "..2", filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		await(t, r, "NVIDIA L40S")
	})
}

// A bad file keeps the last good machine, and is logged once, with its place.
func TestBadFileKeepsTheLastGoodMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.json")
	good := dumpOf(t, "NVIDIA H20")
	write(t, path, good)
	var log bytes.Buffer
	r := NewReplay(path, "", slog.New(slog.NewTextHandler(&log, nil)))
	first := r.Scan(t.Context())
	write(t, path, good[:len(good)/2])
	for range 3 {
		if r.Scan(t.Context()) != first {
			t.Fatal("half a file changed the machine")
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "line ") {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r.Scan(t.Context()) != first {
		t.Error("a missing file changed the machine")
	}
	write(t, path, append(good, '\n'))
	if r.Scan(t.Context()) != first {
		t.Error("the same machine in other bytes is another machine")
	}
}

func TestRunOnABadFileFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.json")
	write(t, path, []byte("{"))
	if err := NewReplay(path, "", slog.New(slog.DiscardHandler)).Run(t.Context()); err == nil {
		t.Error("no error")
	}
}

// An invalid file at the start ends Run only without an earlier machine.
func TestRunKeepsAMachineFromBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.json")
	write(t, path, dumpOf(t, "NVIDIA H20"))
	r := NewReplay(path, "", slog.New(slog.DiscardHandler))
	r.Scan(t.Context())
	write(t, path, []byte("{"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil || r.Machine() == nil {
		t.Errorf("machine %v, %v", r.Machine(), err)
	}
}
