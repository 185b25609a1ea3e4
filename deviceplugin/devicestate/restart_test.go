package devicestate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

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
			r := newRig(t)
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
