package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

var update = flag.Bool("update", false, "write the machine files")

func TestFilesAreWhatTheGeneratorWrites(t *testing.T) {
	if *update {
		if err := run([]string{"-dir", ".."}, os.Stderr); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]bool{}
	for _, m := range machines() {
		path := filepath.Join("..", m.Node+".json")
		want[path] = true
		t.Run(m.Node, func(t *testing.T) {
			fresh, err := machine.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(fresh), string(file)); diff != "" {
				t.Errorf("run go generate ./test/machines/generate (-generator +file):\n%s", diff)
			}
			decoded, err := machine.Decode(file)
			if err != nil {
				t.Fatal(err)
			}
			again, err := machine.Encode(decoded)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(file), string(again)); diff != "" {
				t.Errorf("decode and encode (-file +again):\n%s", diff)
			}
		})
	}
	files, err := filepath.Glob("../*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !want[file] && filepath.Base(file) != "h100-vm.json" { // The dump of a real machine.
			t.Errorf("%s comes from no shape", file)
		}
	}
}

// TestFunctionsStandBehindDevices checks what a scan guarantees and Decode
// does not: every device with an address has its function.
func TestFunctionsStandBehindDevices(t *testing.T) {
	for _, m := range machines() {
		t.Run(m.Node, func(t *testing.T) {
			for i := range m.GPUs {
				if m.Function(m.GPUs[i].PCI) == nil {
					t.Errorf("GPU %s has no function", m.GPUs[i].PCI)
				}
			}
			for i := range m.HCAs {
				if h := &m.HCAs[i]; !h.Virtual && m.Function(h.PCI) == nil {
					t.Errorf("HCA %s has no function", h.Name)
				}
			}
		})
	}
}
