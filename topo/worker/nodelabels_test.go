package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

func TestGroupsOfLabels(t *testing.T) {
	labels := map[string]string{"topology.kubernetes.io/zone": "z1", "example.com/rack": "r7", "example.com/row": ""}
	for _, tt := range []struct {
		name string
		keys []config.LabelKey
		want []string
	}{
		{"none configured", nil, nil},
		{"top first", []config.LabelKey{"topology.kubernetes.io/zone", "example.com/rack"}, []string{"z1", "r7"}},
		{"a level that the Node lacks", []config.LabelKey{"example.com/hall", "example.com/row", "example.com/rack"}, []string{"r7"}},
	} {
		q := Query{Labels: labels, Topology: config.Topology{PathLabels: tt.keys}}
		if diff := cmp.Diff(Report{Path: tt.want}, NodeLabels{}.Discover(t.Context(), q)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
