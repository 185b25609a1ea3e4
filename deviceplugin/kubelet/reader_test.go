package kubelet

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A machine begins with a clock that is hours ahead and set back while its kubelet starts, or
// after that: to a plugin that comes later the kubelet does not start for these hours, or for ever.
func TestAClockThatIsSetBack(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		name string
		made [2]time.Time
	}{
		{"between the kubelet's sockets", [2]time.Time{now.Add(8 * time.Hour), now.Add(-time.Minute)}},
		{"after both", [2]time.Time{now.Add(8 * time.Hour), now.Add(8 * time.Hour)}},
		{"not at all", [2]time.Time{now.Add(-time.Minute), now.Add(-time.Minute)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			at := now
			r := NewReader(nil, t.TempDir(), func() time.Time { return at })
			socket := func(i int, made time.Time) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(r.sockets[i]), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(r.sockets[i], nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chtimes(r.sockets[i], made, made); err != nil {
					t.Fatal(err)
				}
			}
			for i, made := range tt.made {
				socket(i, made)
			}
			r.Registered()
			if !r.Starting() {
				t.Error("a kubelet that has just registered the plugin knows its pods")
			}
			if at = at.Add(StartGrace); r.Starting() {
				t.Error("it starts still")
			}
			if socket(0, at); !r.Starting() {
				t.Error("the next one has begun, and does not start")
			}
			at = at.Add(time.Minute)
			if socket(1, at); !r.Starting() {
				t.Error("it has just begun to take plugins, and does not start")
			}
			if at = at.Add(StartGrace); r.Starting() {
				t.Error("the next one starts still")
			}
		})
	}
}

// An entry of no pod or container costs no other.
func TestBadEntry(t *testing.T) {
	entries, err := parseCheckpoint([]byte(`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"0":["1"]}},{"PodUID":"u","ContainerName":"c"}]}}`))
	if err != nil || len(entries) != 1 || entries[0].uid != "u" {
		t.Errorf("%+v, %v", entries, err)
	}
}

func TestCheckpointIsBounded(t *testing.T) {
	if _, err := readCheckpoint("/dev/zero"); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a device: %v", err)
	}
	huge := filepath.Join(t.TempDir(), "kubelet_internal_checkpoint")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, maxCheckpoint+1); err != nil {
		t.Fatal(err)
	}
	if _, err := readCheckpoint(huge); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a huge file: %v", err)
	}
}

// A checkpoint is read again once the kubelet has replaced it.
func TestCheckpointIsReadOnce(t *testing.T) {
	r := NewReader(nil, t.TempDir(), time.Now)
	write := func(uid string) {
		t.Helper()
		text := `{"Data":{"PodDeviceEntries":[{"PodUID":"` + uid + `","ContainerName":"c","ResourceName":"r"}]}}`
		err := os.MkdirAll(filepath.Dir(r.checkpoint), 0o755)
		if err = errors.Join(err, os.WriteFile(r.checkpoint+".new", []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(what, want string) {
		t.Helper()
		got := ""
		entries, err := r.entries()
		for _, e := range entries {
			got += e.uid
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", what, got, err, want)
		}
	}
	read("no file", "")
	write("a")
	if err := os.Rename(r.checkpoint+".new", r.checkpoint); err != nil {
		t.Fatal(err)
	}
	read("the first", "a")
	first, err := os.Stat(r.checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	write("b")
	if err := os.Rename(r.checkpoint+".new", r.checkpoint); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(r.checkpoint, first.ModTime(), first.ModTime()); err != nil {
		t.Fatal(err)
	}
	read("another file of the same size and time", "b")
	if err := os.Remove(r.checkpoint); err != nil {
		t.Fatal(err)
	}
	read("it is gone", "")
}
