package devicestate

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// named is an entry as Allocate makes it.
func addName(t *testing.T, d *records) *allocate.Entry {
	t.Helper()
	e := fullEntry()
	e.Owner, e.Sharing = nil, cdi.Sharing{}
	if err := d.add(e); err != nil {
		t.Fatal(err)
	}
	return e
}

func loaded(t *testing.T, dir string) []string {
	t.Helper()
	all, err := newRecords(dir).load()
	if err != nil {
		t.Error(err)
	}
	return slices.Sorted(maps.Keys(all))
}

// The names of Allocate outlive the process, in any step on the way to an owner.
// No file is made for one: a pod's admission waits for it.
func TestNamesComeBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing", "records")
	d := newRecords(dir)
	one, two, gone := addName(t, d), addName(t, d), addName(t, d)
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("three names made %v, %v", files, err)
	}
	all, err := newRecords(dir).load()
	want := map[string]*allocate.Entry{one.Device: one, two.Device: two, gone.Device: gone}
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	one.Owner, one.Sharing = fullEntry().Owner, fullEntry().Sharing
	if err := d.write(one); err != nil {
		t.Fatal(err)
	}
	if err := d.remove(gone); err != nil {
		t.Fatal(err)
	}
	all, err = newRecords(dir).load()
	delete(want, gone.Device)
	if all[gone.Device] == nil {
		t.Error("the list is written again while it has names that have no owner")
	}
	delete(all, gone.Device)
	if diff := cmp.Diff(want, all); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if err := d.remove(two); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{one.Device}, loaded(t, dir)); diff != "" {
		t.Errorf("after the last one (-want +got):\n%s", diff)
	}
}

// The list does not grow while there is always a name without an owner.
func TestNamesAreBounded(t *testing.T) {
	dir := t.TempDir()
	d := newRecords(dir)
	waits := addName(t, d)
	for range 1000 {
		if err := d.remove(addName(t, d)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "names.jsonl"))
	if err != nil || info.Size() > 100<<10 {
		t.Errorf("%v, %v", info, err)
	}
	if all := loaded(t, dir); !slices.Contains(all, waits.Device) {
		t.Errorf("of %d names, the one that waits is gone", len(all))
	}
}

// A process that ends in the middle of a line takes nothing from the others, before
// or after it.
func TestNameCutOff(t *testing.T) {
	dir := t.TempDir()
	d := newRecords(dir)
	one, cut := addName(t, d), addName(t, d)
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
		writeFile(t, path, string(content[:len(content)-tt.bytes]))
		again := newRecords(dir)
		if _, err := again.load(); err != nil {
			t.Error(err)
		}
		three := addName(t, again)
		want := slices.Sorted(slices.Values(append(tt.kept, three.Device)))
		if diff := cmp.Diff(want, loaded(t, dir)); diff != "" {
			t.Errorf("%d bytes of %s were cut off (-want +got):\n%s", tt.bytes, cut.Device, diff)
		}
	}
}
