package publish

import (
	"testing"
	"time"
	"unique"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// What is to be written, of what the watch has, and what this leader wrote.
func TestLook(t *testing.T) {
	well := informers.Condition{Status: "True", Reason: "AsExpected", Message: "x"}
	wrong := informers.Condition{Status: "False", Reason: "LinkDown", Message: "y"}
	of := func(c informers.Condition) informers.Cables {
		return informers.Cables{Summary: unique.Make(informers.CablesSummary{Condition: c})}
	}
	node := func(c informers.Condition) *informers.Node {
		return &informers.Node{Name: "n1", UID: "u", Fabric: unique.Make(c)}
	}
	report := func(c informers.Condition) *informers.Report {
		return &informers.Report{Owner: "u", Name: "n1", Cables: of(c)}
	}
	none := informers.Condition{}
	now := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		name   string
		node   *informers.Node
		report *informers.Report
		want   informers.Condition
		// wrote means that this leader has written to these versions.
		wrote, full, due bool
	}{
		{name: "as it is", node: node(well), report: report(well), want: well},
		{name: "a wrong cable", node: node(well), report: report(well), want: wrong, due: true},
		{name: "the Node's alone", node: node(none), report: report(well), want: well, due: true},
		{name: "written, and the watch is behind", node: node(well), report: report(well), want: wrong, wrote: true},
		{name: "another client took it away", node: node(well), report: report(well), want: wrong, wrote: true, full: true, due: true},
		{name: "no report", node: node(none), want: none},
		{name: "the report went", node: node(well), want: none, due: true},
	} {
		c := &cables{
			Publisher: &Publisher{options: Options{Exports: Exports{Conditions: true}, CableDelay: cableDelay}}, known: map[string]*nodeCables{},
		}
		if tt.wrote {
			c.known["n1"] = &nodeCables{onNode: tt.node, onReport: tt.report, wrote: now}
		}
		if got := c.look(&informers.NodeState{Name: "n1", Node: tt.node, Report: tt.report}, of(tt.want), tt.full, now); (got != nil) != tt.due {
			t.Errorf("%s: to be written is %t", tt.name, got != nil)
		}
	}
}

// A link that flaps is written when it has stood, and not again at once; a node that
// is as it should be is not remembered.
func TestLookWaits(t *testing.T) {
	c := &cables{
		Publisher: &Publisher{options: Options{Exports: Exports{Conditions: true}, CableDelay: cableDelay}}, known: map[string]*nodeCables{},
	}
	condition := informers.Condition{Status: "True"}
	good := informers.Cables{Summary: unique.Make(informers.CablesSummary{Condition: condition})}
	bad := informers.Cables{
		Summary:  unique.Make(informers.CablesSummary{Findings: 1, Condition: informers.Condition{Status: "False"}}),
		Findings: []v1alpha1.Finding{{Kind: "dead"}},
	}
	n := &informers.NodeState{
		Name: "n1", Node: &informers.Node{Name: "n1", UID: "u", Fabric: unique.Make(condition)},
		Report: &informers.Report{Name: "n1", Owner: "u", Cables: good},
	}
	at := func(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }
	if k := c.look(n, bad, false, at(0)); k == nil || k.since != at(0) {
		t.Fatalf("%+v", k)
	}
	if k := c.look(n, bad, false, at(3)); k == nil || k.since != at(0) {
		t.Errorf("it stands since %+v", k)
	}
	// It is back before it was written.
	if k := c.look(n, good, false, at(4)); k != nil || len(c.known) != 0 {
		t.Errorf("%+v, %d remembered", k, len(c.known))
	}
	if k := c.look(n, bad, false, at(6)); k == nil || k.since != at(6) {
		t.Errorf("it stands since %+v", k)
	}
}
