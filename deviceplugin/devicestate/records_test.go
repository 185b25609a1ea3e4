package devicestate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// entry is one of shares, with all that an entry can have.
func fullEntry() *allocate.Entry {
	ids := []string{"GPU-0::1"}
	return &allocate.Entry{
		Kind: cdi.SGPU, Device: cdi.NewName(cdi.SGPU, "nvidia.com/sgpu", ids).Device, Resource: "nvidia.com/sgpu", IDs: ids,
		Created: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
		Owner:   &kubelet.Container{Pod: kubelet.Pod{Namespace: "default", Name: "a", UID: "u"}, Name: "main"},
		Sharing: allocation.Sharing{
			Shares: []allocation.Share{{UUID: "GPU-0", VCore: 30, MemoryMiB: 4096}}, Policy: "fixed-share", By: allocation.ByNode,
		},
		RunAs: new(int64(1000)),
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEntryComesBackAsItWas(t *testing.T) {
	dir, e := t.TempDir(), fullEntry()
	if err := (&records{dir}).write(e); err != nil {
		t.Fatal(err)
	}
	// The file is read across upgrades: its names do not change.
	content, err := os.ReadFile(filepath.Join(dir, e.Device+".json"))
	want := `{"kind":"sgpu","device":"` + e.Device + `","resource":"nvidia.com/sgpu","ids":["GPU-0::1"],` +
		`"created":"2026-11-22T10:00:00Z","owner":{"namespace":"default","name":"a","uid":"u","container":"main"},` +
		`"shares":[{"uuid":"GPU-0","vcore":30,"memoryMiB":4096}],"policy":"fixed-share","by":"node","runAs":1000}` + "\n"
	if diff := cmp.Diff(want, string(content)); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	all, err := (&records{dir}).load()
	if diff := cmp.Diff(map[string]*allocate.Entry{e.Device: e}, all); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// TestWhatCannotBeRead is set aside for a person, and does not hide the others.
func TestWhatCannotBeRead(t *testing.T) {
	dir, e := t.TempDir(), fullEntry()
	d := &records{dir}
	if err := d.write(e); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, e.Device+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var set []string
	for _, bad := range []string{
		string(content[:len(content)/2]), // Torn by a loss of power.
		"",                               // As some file systems leave it.
		`{"version":2,"entry":{}}`,       // Of a version that is not known.
		strings.Replace(string(content), e.Device, "x", 1), // Of another device.
		strings.Replace(string(content), "GPU-0::1", "GPU-1::1", 1),
		strings.Replace(string(content), `"vcore":30`, `"vcore":-30`, 1), // It would leave more than there is to others.
		strings.Replace(string(content), `"memoryMiB":4096`, `"memoryMiB":9007199254740993`, 1),
	} {
		device := cdi.NewName(cdi.SGPU, "nvidia.com/sgpu", e.IDs).Device
		path := filepath.Join(dir, device+".json")
		writeFile(t, path, strings.Replace(bad, e.Device, device, 1))
		set = append(set, path)
	}
	endless := filepath.Join(dir, cdi.NewName(cdi.SGPU, "nvidia.com/sgpu", e.IDs).Device+".json")
	if err := os.Symlink("/dev/zero", endless); err != nil {
		t.Fatal(err)
	}
	set = append(set, endless)
	writeFile(t, filepath.Join(dir, "notes.json"), "of a person")
	all, err := d.load()
	if len(all) != 1 || all[e.Device] == nil || err == nil || strings.Count(err.Error(), "set aside") != len(set) {
		t.Errorf("%d entries, error %v", len(all), err)
	}
	for _, path := range set {
		if _, err := os.Stat(path + ".corrupt"); err != nil {
			t.Error(err)
		}
	}
	if all, err = d.load(); len(all) != 1 || err != nil {
		t.Errorf("after that %d entries, error %v", len(all), err)
	}
}

// TestSweep removes what was left by writes that were cut off, and what was set
// aside of devices that no container has.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	kept, dropped := fullEntry().Device, fullEntry().Device
	for _, name := range []string{".heddle-1.tmp", kept + ".json.corrupt", dropped + ".json.corrupt", "notes.json"} {
		writeFile(t, filepath.Join(dir, name), "{")
	}
	d := &records{dir}
	left := func(before time.Time) []string {
		t.Helper()
		if err := d.sweep(map[string]bool{kept: true}, before); err != nil {
			t.Error(err)
		}
		files, err := os.ReadDir(dir)
		var names []string
		for _, f := range files {
			names = append(names, f.Name())
		}
		if err != nil {
			t.Error(err)
		}
		return names
	}
	want := []string{".heddle-1.tmp", kept + ".json.corrupt", "notes.json"}
	if diff := cmp.Diff(want, left(time.Now().Add(-time.Hour))); diff != "" {
		t.Errorf("a write may be under way (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[1:], left(time.Now().Add(time.Hour))); diff != "" {
		t.Errorf("no write is (-want +got):\n%s", diff)
	}
}

func TestNoDirectory(t *testing.T) {
	d := &records{filepath.Join(t.TempDir(), "none")}
	all, err := d.load()
	if err = errors.Join(err, d.sweep(nil, time.Now()), d.remove(fullEntry())); len(all) != 0 || err != nil {
		t.Errorf("%d entries, error %v", len(all), err)
	}
}
