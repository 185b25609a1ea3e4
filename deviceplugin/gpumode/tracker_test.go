package gpumode

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

func TestRestart(t *testing.T) {
	share := configured(shared)
	for _, tt := range []struct {
		name string
		// file is what is on disk; empty is nothing.
		file    string
		kubelet *kubelet
		config  *config.NodeConfig
		// atOnce is before the kubelet has been asked.
		atOnce, after []string
		known         bool
		problem       string
	}{
		{
			"first start, and pods have GPUs",
			"",
			&kubelet{held: []inventory.Held{{Resource: gpus, ID: "GPU-a", Pod: "ml/a"}, {Resource: sgpus, ID: "GPU-b::3", Pod: "ml/b"}}},
			configured(native),
			[]string{" of native until it is known who holds it", " of native until it is known who holds it"},
			[]string{"native of native", "sgpu of native until ml/b ends"},
			false, "",
		},
		{
			"the slots of another device plugin are no shares", "",
			&kubelet{held: []inventory.Held{{Resource: gpus, ID: "GPU-a::2", Pod: "ml/a"}}}, share,
			[]string{" of sgpu until it is known who holds it", " of sgpu until it is known who holds it"},
			[]string{"native of sgpu until ml/a ends", "sgpu of sgpu"},
			false, "",
		},
		{
			"in the middle of a switch", `{"version":1,"modes":{"GPU-a":"sgpu","GPU-b":"native","GPU-gone":"sgpu"}}`,
			&kubelet{held: []inventory.Held{{Resource: gpus, ID: "GPU-b", Pod: "ml/b"}}}, share,
			[]string{"sgpu of sgpu", "native of sgpu until it is known who holds it"},
			[]string{"sgpu of sgpu", "native of sgpu until ml/b ends"},
			true, "",
		},
		{
			"half a file", `{"version":1,"modes":{"GPU-a":"sg`,
			&kubelet{held: []inventory.Held{{Resource: sgpus, ID: "GPU-b::0", Pod: "ml/b"}}}, configured(native),
			[]string{" of native until it is known who holds it", " of native until it is known who holds it"},
			[]string{"native of native", "sgpu of native until ml/b ends"},
			false,
			"modes are taken from the holders of the GPUs",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, modesFile)
			if tt.file != "" {
				if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				tracker := New(dir, slog.New(slog.DiscardHandler))
				tracker.Round(two(), tt.config)
				tracker.Published(tracker.GPUs())
				want(t, tracker, "at once", tt.atOnce...)
				if tracker.Known() != tt.known {
					t.Errorf("known: %t", !tt.known)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer func() { cancel(); synctest.Wait() }()
				go follow(ctx, tracker, tt.kubelet.observe)
				synctest.Wait()
				round(tracker, two(), tt.config)
				want(t, tracker, "later", tt.after...)
				if got := problem(tracker, FaultModes); !strings.Contains(got, tt.problem) || (got == "") != (tt.problem == "") {
					t.Errorf("problem %q", got)
				}
			})
			// What is on disk then is what the next start begins with.
			if tt.kubelet.down {
				return
			}
			next := New(dir, slog.New(slog.DiscardHandler))
			next.Round(two(), tt.config)
			for i, c := range next.GPUs() {
				if !strings.HasPrefix(tt.after[i], c.Mode+" of") || !next.Known() {
					t.Errorf("GPU %d is %q on disk, was %q", i, c.Mode, tt.after[i])
				}
			}
		})
	}
}

func TestAModeThatCannotBeWrittenIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, modesFile), []byte(`{"version":1,"modes":{"GPU-a":"native","GPU-b":"native"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		k, m, c := &kubelet{}, two(), configured(shared, "1")
		tracker, stop := start(t, dir, k)
		defer stop()
		// A directory in the way of the new file.
		obstacle := filepath.Join(dir, modesFile)
		if err := errors.Join(os.Remove(obstacle), os.Mkdir(obstacle, 0o750)); err != nil {
			t.Fatal(err)
		}
		round(tracker, m, c)
		later(tracker, m, c, 5*time.Second)
		want(t, tracker, "full disk", "native of native", "native of sgpu until the kubelet no longer offers it")
		if is, reason := offered(tracker, &m.GPUs[1], native); !is || reason != "moves to sgpu when the kubelet no longer offers it" {
			t.Errorf("%t, %q", is, reason)
		}
		if problem(tracker, FaultSaving) == "" {
			t.Error("no problem")
		}
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
		later(tracker, m, c, 5*time.Second)
		want(t, tracker, "mended", "native of native", "sgpu of sgpu")
		if p := tracker.Problems(); len(p) > 0 {
			t.Errorf("problems %v", p)
		}
	})
}

func TestMIGGPUsStayNative(t *testing.T) {
	m := two()
	m.GPUs[1].MIG = machine.MIG{Enabled: true, Devices: []machine.MIGDevice{{UUID: "MIG-b0"}}}
	synctest.Test(t, func(t *testing.T) {
		k := &kubelet{held: []inventory.Held{{Resource: "nvidia.com/mig-1g.10gb", ID: "MIG-b0", Pod: "ml/b"}}}
		tracker, stop := start(t, t.TempDir(), k)
		defer stop()
		round(tracker, m, configured(shared))
		want(t, tracker, "MIG", "sgpu of sgpu", "native of native")
		tracker.Cordon("GPU-b")
		if is, reason := offered(tracker, &m.GPUs[1], native); !is || reason != Cordoned {
			t.Errorf("%t, %q", is, reason)
		}
	})
}

func TestCordon(t *testing.T) {
	m, dir, c := two(), t.TempDir(), configured(native)
	tracker := New(dir, slog.New(slog.DiscardHandler))
	tracker.gpus = map[string]gpuState{"GPU-a": {mode: native, checked: true}, "GPU-b": {mode: shared, checked: true, phase: draining}}
	tracker.Round(m, c)
	tracker.Cordon(" GPU-b, GPU-gone,GPU-b")
	want(t, tracker, "cordoned", "native of native", "sgpu of native until it is known who holds it, cordoned")
	if is, reason := offered(tracker, &m.GPUs[1], shared); !is || reason != Cordoned {
		t.Errorf("%t, %q", is, reason)
	}
	if diff := cmp.Diff([]string{"GPU-gone"}, tracker.UnknownCordoned()); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
	// A value without sense changes nothing.
	tracker.Cordon("GPU_x;rm")
	tracker.Cordon(strings.Repeat("GPU-a,", 10000))
	next := New(dir, slog.New(slog.DiscardHandler))
	next.Round(m, c)
	for name, one := range map[string]*Tracker{"this process": tracker, "the next, without API server": next} {
		if gpus := one.GPUs(); gpus[0].Cordoned || !gpus[1].Cordoned {
			t.Errorf("%s: %+v", name, gpus)
		}
	}
	if problem(tracker, FaultCordon) == "" {
		t.Error("no problem")
	}
	tracker.Cordon("")
	if p := tracker.Problems(); tracker.GPUs()[1].Cordoned || len(p) > 0 {
		t.Errorf("%+v, %v", tracker.GPUs(), p)
	}
	last := New(dir, slog.New(slog.DiscardHandler))
	last.Round(m, c)
	if last.GPUs()[1].Cordoned {
		t.Error("cordoned again after a restart")
	}
}

func FuzzRecord(f *testing.F) {
	for _, seed := range []string{
		`{"version":1,"modes":{"GPU-a":"sgpu"}}`, `{"version":2}`, `{"version":1,"modes":{"a b":"native"}}`,
		`{"version":1,"cordoned":["GPU-a"]}`, `{"version":1,"modes":{"GPU-a":""}}`, `{} {}`, `{"version":1,"more":1}`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			return
		}
		for _, uuid := range r.Cordoned {
			if uuid == "" || strings.ContainsAny(uuid, ", :\n") {
				t.Errorf("took %q", uuid)
			}
		}
		for uuid, mode := range r.Modes {
			if uuid == "" || strings.ContainsAny(uuid, ", :\n") || mode != native && mode != shared {
				t.Errorf("took %q: %q", uuid, mode)
			}
		}
	})
}

// problem returns the current problem of a component, or an empty string.
func problem(t *Tracker, component string) string {
	for _, p := range t.Problems() {
		if p.Name == component {
			return p.Reason
		}
	}
	return ""
}
