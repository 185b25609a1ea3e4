package fabrictest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

func minute(n int) metav1.Time { return metav1.NewTime(time.Unix(int64(60*n), 0).UTC()) }

// slowCable runs a test of three ports on a leaf, the last with a slow cable.
func slowCable(slow bool) *Test {
	var ports []Port
	for _, node := range []string{"a", "b", "c"} {
		ports = append(ports, Port{Node: node, HCA: "mlx5_0", ID: "0", Number: 1, Leaf: "s", Gbps: 388})
	}
	t := NewTest(ports, 1)
	for flows := t.Next(); flows != nil; flows = t.Next() {
		var results []Result
		for _, f := range flows {
			r := Result{Flow: f, Gbps: 380, Latency: 2}
			if slow && f.From != f.To && (f.From == 2 || f.To == 2) {
				r.Gbps = 40
			}
			results = append(results, r)
		}
		t.Add(results)
	}
	return t
}

// record adds the results of node c to others.
func record(t *Test, tests []v1alpha1.LinkTest, at metav1.Time) []v1alpha1.LinkTest {
	return Record(tests, &t.Ports[2], &t.Results(at)[2])
}

func TestRecord(t *testing.T) {
	old := v1alpha1.LinkTest{HCA: "mlx5_9", ID: "9", Port: 1, Results: []v1alpha1.LinkResult{{Time: minute(1), Gbps: 1}}}
	tests := record(slowCable(true), []v1alpha1.LinkTest{old}, minute(2))
	want := []v1alpha1.LinkTest{{HCA: "mlx5_0", ID: "0", Port: 1, Results: []v1alpha1.LinkResult{{
		Time: minute(2), Gbps: 40, ExpectedGbps: 388, LatencyNanoseconds: 2000,
		Fault: "cable", What: "bandwidth", Value: "40 Gb/s", Limit: "304 Gb/s",
	}}}, old}
	if diff := cmp.Diff(want, tests); diff != "" {
		t.Fatalf("results (-want +got):\n%s", diff)
	}
	degraded := Degraded(tests, nil)
	wantDegraded := []v1alpha1.DegradedLink{{
		HCA: "mlx5_0", ID: "0", Port: 1, What: "bandwidth", Value: "40 Gb/s", Limit: "304 Gb/s",
		Source: "heddle fabric test: cable", Since: minute(2), Time: minute(2),
	}}
	if diff := cmp.Diff(wantDegraded, degraded); diff != "" {
		t.Errorf("degraded (-want +got):\n%s", diff)
	}
	at := minute(3)
	if got := Degraded(tests, []v1alpha1.Rail{{ID: "0", Port: 1, Since: &at}}); len(got) != 0 {
		t.Errorf("a link that has changed: %v", got)
	}
	if at = minute(1); len(Degraded(tests, []v1alpha1.Rail{{ID: "0", Port: 1, Since: &at}})) != 1 {
		t.Error("a link that changed before the test")
	}
	for i := range 12 {
		tests = record(slowCable(false), tests, minute(4+i))
	}
	if got := tests[0].Results; len(got) != 10 || got[0].Time != minute(15) || got[0].Fault != "" || len(tests[1].Results) != 1 {
		t.Errorf("after twelve more tests: %+v", tests)
	}
	if got := Degraded(tests, nil); len(got) != 0 {
		t.Errorf("after good tests: %v", got)
	}
}

// TestFailuresAndLatency names a port whose flows fail, and one with a high latency.
func TestFailuresAndLatency(t *testing.T) {
	f := newFleet(8, 2, 2, 1)
	test := NewTest(f.ports, 2)
	for flows := test.Next(); flows != nil; flows = test.Next() {
		var results []Result
		for _, flow := range flows {
			r := f.measure(flow)
			switch {
			case flow.From == flow.To:
			case flow.From == 4 || flow.To == 4:
				r = Result{Flow: flow, Failure: "ib_write_bw: Completion with error"}
			case flow.From == 9 || flow.To == 9:
				r.Latency = 9
			case flow.From == 2 || flow.To == 2: // Its node gives way.
				r = Result{Flow: flow, Failure: "gone", Gone: f.ports[2].Node}
			}
			results = append(results, r)
		}
		test.Add(results)
	}
	if gone := test.Gone(); len(gone) != 1 || gone[0] != f.ports[2].Node {
		t.Errorf("gone: %v", gone)
	}
	faults, unexplained := test.Faults()
	if len(faults) != 2 || len(unexplained) != 0 || faults[0].What != Failure || faults[0].places[0] != (Place{Cable, 4, ""}) ||
		faults[1].What != Latency || faults[1].places[0] != (Place{Cable, 9, ""}) || len(faults[0].places)+len(faults[1].places) != 2 {
		t.Errorf("faults %+v, unexplained %v", faults, unexplained)
	}
}

// TestSlowEverywhere names nothing where all flows are equally slow, and two places where nothing tells them apart.
func TestSlowEverywhere(t *testing.T) {
	run := func(nodes int, slow func(Flow) bool) []Fault {
		f := newFleet(nodes, 1, 1, 1)
		test := NewTest(f.ports, 0)
		for flows := test.Next(); flows != nil; flows = test.Next() {
			var results []Result
			for _, flow := range flows {
				r := f.measure(flow)
				if slow(flow) {
					r.Gbps /= 4
				}
				results = append(results, r)
			}
			test.Add(results)
		}
		faults, _ := test.Faults()
		return faults
	}
	if got := run(6, func(Flow) bool { return true }); len(got) != 0 {
		t.Errorf("all slow: %+v", got)
	}
	got := run(2, func(f Flow) bool { return f.From != f.To })
	if len(got) != 1 || len(got[0].places) != 2 || got[0].places[0] != (Place{Cable, 0, ""}) || got[0].places[1] != (Place{Cable, 1, ""}) {
		t.Errorf("two nodes: %+v", got)
	}
}
