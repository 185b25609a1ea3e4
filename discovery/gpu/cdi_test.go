package gpu

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

// A vendor or a GPU for which no devices can be made costs no other.
func TestGenerateGoesOn(t *testing.T) {
	vendors := Vendors{{Name: "A", PCI: PCI{Vendor: "0xa"}}, {Name: "B", PCI: PCI{Vendor: "0xb"}}}
	maker := struct {
		*fake
		ReplayedEdits
	}{&fake{}, ReplayedEdits{Dir: t.TempDir(), Vendors: vendors}}
	second := Source{vendors[1], maker}
	for _, tt := range []struct {
		name  string
		edits EditsGenerator
		bus   []string
		want  []string
	}{
		{"the first GPU has no vendor", maker, []string{"0xc", "0xb"}, []string{"0", "1"}},
		{"the first vendor makes none", Sources{{vendors[0], &fake{}}, second}, []string{"0xa", "0xb"}, []string{"1"}},
		{"the first vendor has none", Sources{{vendors[0], maker}, second}, []string{"0xb", "0xb"}, []string{"0", "1"}},
	} {
		m := &machine.Machine{}
		for i, name := range []string{"0", "1"} {
			m.PCI = append(m.PCI, machine.PCIFunction{Address: name, Vendor: tt.bus[i]})
			m.GPUs = append(m.GPUs, machine.GPU{UUID: name, PCI: name})
		}
		got, err := tt.edits.Generate(m)
		if err != nil {
			t.Fatal(err)
		}
		// There are no device nodes: each GPU that was reached is missing.
		if diff := cmp.Diff(tt.want, slices.Sorted(maps.Keys(got.Missing))); diff != "" {
			t.Errorf("%s: GPUs reached (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A link to a file that is gone hides no file after it.
func TestFingerprintGoesOn(t *testing.T) {
	dir := t.TempDir()
	link, file := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := errors.Join(os.Symlink("gone", link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got := Fingerprint(filepath.Join(dir, "*")); !strings.HasPrefix(got, file+" ") {
		t.Errorf("%q", got)
	}
}
