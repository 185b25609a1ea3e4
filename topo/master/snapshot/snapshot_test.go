package snapshot_test

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// JSON has the years 0 to 9999 alone, and RFC 3339 other zones than UTC: the times of one node, or of
// one pod on it, must not take the answers about all others.
func TestTimesThatJSONHasNot(t *testing.T) {
	for _, far := range []string{"9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00"} {
		at, err := time.Parse(time.RFC3339, far)
		if err != nil {
			t.Fatal(err)
		}
		all, when := fleet(t, 2, 2), metav1.NewTime(at)
		report := fabric.Read(&v1alpha1.NodeTopologySpec{
			Stale: []v1alpha1.StaleSource{{Source: v1alpha1.SourceLLDP, Since: when}},
			Rails: []v1alpha1.Rail{{ID: "a", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkDown, Since: &when}},
		})
		m := fabric.New([]fabric.Level{{Kind: "leaf", By: fabric.ByLeaf}})
		m.Put(fabric.Node{Name: "odd", Since: at, Report: report, Heartbeat: at})
		all.Tree = m.Snapshot(time.Unix(1, 0))
		node := &informers.Node{Name: "odd", UID: "1", Since: at}
		all.Nodes = table(map[string]*informers.NodeState{
			"odd": {Name: "odd", Node: node, Report: &informers.Report{Report: report, Name: "odd", Owner: "1"}},
		})
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{wellknown.GangName: "g"}}}
		p.Spec.NodeName, p.Status.Phase, p.Status.StartTime = "odd", corev1.PodRunning, &when
		member, _ := gang.MemberOf(p, 8)
		all.Gangs = snapshot.Table[*informers.Gang]{}.With(map[string]*informers.Gang{
			member.Key(): {Name: member.Key(), Members: []*gang.Member{member}},
		})
		n, _ := all.Node("odd", time.Unix(1, 0))
		for _, answer := range []any{n, all.Topology(), all.SelectGangs("", "")} {
			if _, err := json.Marshal(answer); err != nil {
				t.Errorf("%s: %v", far, err)
			}
		}
	}
}

func table(nodes map[string]*informers.NodeState) snapshot.Table[*informers.NodeState] {
	return snapshot.Table[*informers.NodeState]{}.With(nodes)
}
