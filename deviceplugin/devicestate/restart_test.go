package devicestate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// TestRestartInEveryGap kills the plugin, the kubelet or both after every step
// and after every file that a step writes. No container ever sees another's
// devices, and what a container has once seen it sees again.
func TestRestartInEveryGap(t *testing.T) {
	for _, restarted := range []string{"plugin", "kubelet", "both"} {
		t.Run(restarted, func(t *testing.T) {
			r := newRig(t, "dgx-h100", func(c *config.NodeConfig) { c.RDMA.Resources[0].Sharers = 1 })
			fail := func() {
				if restarted != "plugin" {
					r.kubelet.Restart()
				}
				if restarted != "kubelet" {
					r.restart()
				}
			}
			other := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_11")}
			otherNames := r.allocate(pod("other"), "main", other)
			r.start(other)
			before := r.mustEnter(otherNames)

			want := asks{gpus: r.gpuIDs(1, 2), hcas: r.deviceIDs("mlx5_9", "mlx5_10")}
			lost, err := r.Allocate(hcas, want[hcas]) // The answer never arrived.
			if err != nil {
				t.Fatal(err)
			}
			fail()
			names := r.allocate(pod("a"), "main", want)
			fail()
			if err := r.Prepare(t.Context(), gpus, want[gpus]); err != nil {
				t.Fatal(err)
			}
			fail()
			if err := r.Prepare(t.Context(), hcas, want[hcas]); err != nil {
				t.Fatal(err)
			}
			first := r.mustEnter(names)
			if !slices.Equal(first.given(), []string{"mlx5_3", "mlx5_4"}) {
				t.Fatalf("bound to %v", first.given())
			}
			// A third container wants the same HCAs if they look free.
			third := asks{gpus: r.gpuIDs(3), hcas: r.deviceIDs("mlx5_0")}
			thirdNames := r.allocate(pod("third"), "main", third)
			for _, cut := range files(t, r, names) {
				if err := os.Remove(cut); err != nil {
					t.Fatal(err)
				}
				fail()
				r.start(third)
				r.start(want)
				if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
					t.Errorf("without %s (-first +now):\n%s", filepath.Base(cut), diff)
				}
				if got := r.mustEnter(thirdNames); !slices.Equal(got.given(), []string{"mlx5_5"}) {
					t.Errorf("without %s the third container has %v", filepath.Base(cut), got.given())
				}
			}
			if diff := cmp.Diff(before, r.mustEnter(otherNames)); diff != "" {
				t.Errorf("the other container (-before +after):\n%s", diff)
			}
			if _, err := r.enter(map[string]string{hcas: lost}); err == nil {
				t.Error("an unused name leads to devices")
			}
		})
	}
}

// files are those behind a container's names, but for the records: specs and
// what is mounted.
func files(t *testing.T, r *rig, names map[string]string) []string {
	t.Helper()
	var list []string
	for _, name := range names {
		n, _ := cdi.ParseName(name)
		list = append(list, filepath.Join(r.options.CDIDir, "heddle-"+string(n.Kind)+"-"+n.Device+".json"),
			filepath.Join(r.options.StateDir, "devices", n.Device+".json"))
	}
	return list
}

// TestEntriesLost: the names are in the checkpoint, so containers start again;
// which HCAs they had is decided again.
func TestEntriesLost(t *testing.T) {
	for _, how := range []string{"gone", "corrupt"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t, "dgx-h100")
			want := asks{gpus: r.gpuIDs(1), hcas: r.deviceIDs("mlx5_9")}
			names := r.allocate(pod("a"), "main", want)
			r.start(want)
			first := r.mustEnter(names)
			records, err := filepath.Glob(filepath.Join(r.options.StateDir, "records", "*.json"))
			if err != nil || len(records) != 2 {
				t.Fatalf("%v: %v", records, err)
			}
			for _, path := range records {
				if how == "gone" {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, []byte(`{"kind":"gpu","devi`), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.restart()
			if how == "corrupt" && (len(r.Problems()) != 1 || !strings.Contains(r.Problems()[0].Reason, "set aside")) {
				t.Errorf("problems: %v", r.Problems())
			}
			if err := r.Unprepare(t.Context()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
				t.Errorf("a running container's spec changed:\n%s", diff)
			}
			r.start(want)
			if diff := cmp.Diff(first, r.mustEnter(names)); diff != "" {
				t.Errorf("at the next start (-first +next):\n%s", diff)
			}
		})
	}
}
