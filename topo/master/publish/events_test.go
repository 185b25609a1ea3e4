package publish

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

func TestChanges(t *testing.T) {
	find := func(kind, port, message string) v1alpha1.Finding {
		return v1alpha1.Finding{Kind: kind, Port: port, Message: message}
	}
	wrong := find("miscabled", "mlx5_3 port 1 (rail 3)", "mlx5_3 port 1 (rail 3) is on leaf-07, expected leaf-03")
	dead := find("dead", "mlx5_3 port 1 (rail 3)", "mlx5_3 port 1 (rail 3) has no active link")
	path := find("path", "", "the reported path contradicts the levels")
	type list = []v1alpha1.Finding
	for _, tt := range []struct {
		name        string
		before, now list
		want        []string
	}{
		{"nothing", list{wrong, path}, list{wrong, path}, nil},
		{"found", nil, list{wrong}, []string{"Warning CableMisplaced " + wrong.Message}},
		{"recovered", list{wrong}, nil, []string{
			"Normal CableRecovered mlx5_3 port 1 (rail 3) is as expected again; it was: " + wrong.Message,
		}},
		{"another fault of one port does not count as recovered", list{wrong}, list{dead}, []string{"Warning LinkDown " + dead.Message}},
		{"a path", list{path}, list{dead}, []string{
			"Warning LinkDown " + dead.Message, "Normal CableRecovered the path is as expected again; it was: " + path.Message,
		}},
	} {
		var got []string
		for _, e := range changes(tt.before, tt.now) {
			got = append(got, e.kind+" "+e.reason+" "+e.message)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	var many list
	for i := range 9 {
		many = append(many, find("dead", fmt.Sprint("rail ", i), fmt.Sprint("rail ", i, " has no active link")))
	}
	got := changes(nil, many)
	if want := "rail 3 has no active link; and 5 more changes, see the condition HeddleFabric"; len(got) != 4 || got[3].message != want {
		t.Errorf("%d events, the last %q", len(got), got[len(got)-1].message)
	}
}
