package checkpoint_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
)

// named is an entry as Allocate makes it.
func named(t *testing.T, d *checkpoint.Dir) *checkpoint.Entry {
	t.Helper()
	e := entry()
	e.Owner, e.Sharing = nil, cdi.Sharing{}
	if err := d.Add(e); err != nil {
		t.Fatal(err)
	}
	return e
}

func devices(t *testing.T, dir string) []string {
	t.Helper()
	all, err := checkpoint.NewDir(dir).Load()
	if err != nil {
		t.Error(err)
	}
	return slices.Sorted(maps.Keys(all))
}

// The names of Allocate outlive the process, in any step on the way to an owner.
// No file is made for one: a pod's admission waits for it.
func TestNamesComeBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing", "records")
	d := checkpoint.NewDir(dir)
	one, two, gone := named(t, d), named(t, d), named(t, d)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("three names made %v, %v", files, err)
	}
	all, err := checkpoint.NewDir(dir).Load()
	want := map[string]*checkpoint.Entry{one.Device: one, two.Device: two, gone.Device: gone}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	one.Owner, one.Sharing = entry().Owner, entry().Sharing
	if err := d.Write(one); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(gone); err != nil {
		t.Fatal(err)
	}
	all, err = checkpoint.NewDir(dir).Load()
	delete(want, gone.Device)
	if all[gone.Device] == nil {
		t.Error("the list is written again while it has names that have no owner")
	}
	delete(all, gone.Device)
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if err := d.Remove(two); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{one.Device}, devices(t, dir)); diff != "" {
		t.Errorf("after the last one (-want +got):\n%s", diff)
	}
}

// The list does not grow while there is always a name without an owner.
func TestNamesAreBounded(t *testing.T) {
	dir := t.TempDir()
	d := checkpoint.NewDir(dir)
	waits := named(t, d)
	for range 1000 {
		if err := d.Remove(named(t, d)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "names.jsonl"))
	if err != nil || info.Size() > 100<<10 {
		t.Errorf("%v, %v", info, err)
	}
	if all := devices(t, dir); !slices.Contains(all, waits.Device) {
		t.Errorf("of %d names, the one that waits is gone", len(all))
	}
}

// A process that ends in the middle of a line takes nothing from the others, before
// or after it.
func TestNameCutOff(t *testing.T) {
	dir := t.TempDir()
	d := checkpoint.NewDir(dir)
	one, cut := named(t, d), named(t, d)
	path := filepath.Join(dir, "names.jsonl")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		bytes int
		kept  []string
	}{
		{20, []string{one.Device}},
		{1, []string{one.Device, cut.Device}}, // Its end of line alone, without which the next line goes on there.
	} {
		write(t, path, string(content[:len(content)-tt.bytes]))
		again := checkpoint.NewDir(dir)
		if _, err := again.Load(); err != nil {
			t.Error(err)
		}
		three := named(t, again)
		want := slices.Sorted(slices.Values(append(tt.kept, three.Device)))
		if diff := cmp.Diff(want, devices(t, dir)); diff != "" {
			t.Errorf("%d bytes of %s were cut off (-want +got):\n%s", tt.bytes, cut.Device, diff)
		}
	}
}
