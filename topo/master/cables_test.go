package master_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/publish"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// cabled is what users see of a node's cables: the Node's condition, and the
// status of its NodeTopology.
func (c *cluster) cabled(name string) string {
	var n corev1.Node
	c.Read("nodes", "", name, &n)
	out := []string{"none"}
	for _, condition := range n.Status.Conditions {
		if condition.Type == wellknown.ConditionFabric {
			out = []string{string(condition.Status), condition.Reason, condition.Message}
		}
	}
	var nt v1alpha1.NodeTopology
	c.Read("nodetopologies", "", name, &nt)
	for _, condition := range nt.Status.Conditions {
		out = append(out, string(condition.Status))
	}
	for _, f := range nt.Status.Findings {
		out = append(out, f.Message)
	}
	return strings.Join(append(out, nt.Status.Rails, nt.Status.Leaf), "|")
}

// uid is a Node's.
func (c *cluster) uid(name string) string {
	var n corev1.Node
	c.Read("nodes", "", name, &n)
	return string(n.UID)
}

// recorded are the Events, in order.
func (c *cluster) recorded(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range c.Names("events") {
		var e corev1.Event
		if !c.Read("events", "default", name, &e) {
			t.Fatal(name)
		}
		out = append(out, strings.Join([]string{e.InvolvedObject.Name, e.Type, e.Reason, e.Message}, " "))
	}
	return out
}

// A cable is put where it is wrong, and back: condition, status and Events follow,
// and nothing is written that did not change.
func TestCables(t *testing.T) {
	c := newCluster(t, apiserver.Kind{APIVersion: "v1", Name: "Event", Plural: "events"})
	f := fabrics.New(fabrics.Plan{Sizes: []int{4, 4}, Rails: 4})
	put := func() {
		for i := range f.Nodes {
			n := &f.Nodes[i]
			c.report(n.Name, c.node(n.Name, true), n.Spec, time.Time{})
		}
	}
	put()
	r := c.replica(t, fabric.ModeLeaf)
	v := r.until(t, "eight reports", reports(8))
	soon := func(o *publish.Options) { o.CableDelay = time.Millisecond }
	c.lead(t, r, publish.Exports{Conditions: true}, soon)
	name := f.Nodes[1].Name
	leaf := func() string {
		n, _ := v.Node(name, time.Now())
		return n.Groups[0].Name
	}()
	const good = "True|AsExpected|every known cable ends where it is expected|True|4/4|"
	well := good + leaf
	for i := range f.Nodes {
		eventually(t, "as expected", func() bool {
			got := c.cabled(f.Nodes[i].Name)
			return got == well || i >= 4 && strings.HasPrefix(got, good)
		})
	}
	// Another Node causes no writes.
	before := [2]int{c.Requests("PATCH", "nodes"), c.Requests("PATCH", "nodetopologies")}
	c.node("cpu1", true)
	r.until(t, "another node", nodes(9))
	if after := [2]int{c.Requests("PATCH", "nodes"), c.Requests("PATCH", "nodetopologies")}; after != before || before != [2]int{8, 8} {
		t.Errorf("%d writes, then %d, want 8 of each", before, after)
	}

	// Rail 2 is put into a leaf of the other group.
	rail := &f.Nodes[1].Spec.Rails[2]
	right, port := *rail.Switch, rail.SwitchPort
	other := f.Nodes[5].Spec.Rails[2]
	rail.Switch, rail.SwitchPort = other.Switch, "40"
	c.report(name, c.uid(name), f.Nodes[1].Spec, time.Time{})
	find := func(v *snapshot.Snapshot) bool { n, _ := v.Node(name, time.Now()); return len(n.Findings) == 1 }
	v = r.until(t, "the finding", find)
	n, _ := v.Node(name, time.Now())
	sentence := n.Findings[0].Sentence()
	for _, word := range []string{"rail 2", " is on " + other.Switch.Name + " port 40", "expected " + right.Name} {
		if !strings.Contains(sentence, word) {
			t.Errorf("%q does not name %q", sentence, word)
		}
	}
	eventually(t, "the wrong cable", func() bool {
		return c.cabled(name) == "False|CableMisplaced|"+sentence+"|False|"+sentence+"|4/4|"+leaf
	})
	rail.Switch, rail.SwitchPort = &right, port
	c.report(name, c.uid(name), f.Nodes[1].Spec, time.Time{})
	eventually(t, "recovered", func() bool { return c.cabled(name) == well })
	subject := n.Findings[0].Subject()
	want := []string{
		name + " Warning CableMisplaced " + sentence, name + " Normal CableRecovered " + subject + " is as expected again; it was: " + sentence,
	}
	eventually(t, "two Events", func() bool { return len(c.recorded(t)) == 2 })
	if diff := cmp.Diff(want, c.recorded(t)); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if after := c.Requests("PATCH", "nodes"); after != before[0]+2 {
		t.Errorf("%d writes of Nodes for two changes", after-before[0])
	}
}

// What is not wanted any more is taken back, and the reports stay explained.
func TestConditionsAreTakenBack(t *testing.T) {
	c := newCluster(t)
	f := fabrics.New(fabrics.Plan{Sizes: []int{4}, Rails: 2})
	for i := range f.Nodes {
		n := &f.Nodes[i]
		c.report(n.Name, c.node(n.Name, true), n.Spec, time.Time{})
		var node corev1.Node
		c.Read("nodes", "", n.Name, &node)
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: wellknown.ConditionFabric, Status: "False"})
		c.Put("nodes", &node)
	}
	r := c.replica(t, fabric.ModeLeaf)
	r.until(t, "four reports", reports(4))
	c.lead(t, r, publish.Exports{}, func(o *publish.Options) { o.CableDelay = time.Millisecond })
	for i := range f.Nodes {
		eventually(t, "no condition", func() bool { return strings.HasPrefix(c.cabled(f.Nodes[i].Name), "none|True|2/2|") })
	}
	var node corev1.Node
	if c.Read("nodes", "", f.Nodes[0].Name, &node); len(node.Status.Conditions) != 1 || node.Status.Conditions[0].Type != corev1.NodeReady {
		t.Errorf("conditions %v", node.Status.Conditions)
	}
}
