package informers

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// TestReadTests reads the results of tests: a slow port is degraded, and an entry without a result says nothing.
func TestReadTests(t *testing.T) {
	at := metav1.NewTime(time.Unix(60, 0))
	object := &v1alpha1.NodeTopology{Status: v1alpha1.NodeTopologyStatus{Tests: []v1alpha1.LinkTest{
		{ID: "0", Port: 1},
		{ID: "1", Port: 1, Results: []v1alpha1.LinkResult{{Time: at, Gbps: 388}, {Time: at, Gbps: 387}}},
		{ID: "2", Port: 1, Results: []v1alpha1.LinkResult{{Time: at, Gbps: 41, Fault: "cable", What: "bandwidth"}}},
	}}}
	object.Spec.DegradedLinks = []v1alpha1.DegradedLink{{ID: "9", What: "pcie-width"}}
	r := readReport(object)
	if len(r.Tests) != 2 || len(r.Tests[0].Results) != 1 || r.Tests[1].ID != "2" {
		t.Errorf("tests %+v", r.Tests)
	}
	if d := r.Rest.DegradedLinks; len(d) != 2 || d[0].ID != "9" || d[1].ID != "2" || len(object.Spec.DegradedLinks) != 1 {
		t.Errorf("degraded links %+v", d)
	}
	again := readReport(object)
	if again.keep(r) != r {
		t.Error("an equal report is another")
	}
	object = object.DeepCopy()
	object.Status.Tests[1].Results[0].Gbps = 300
	if again = readReport(object); again.keep(r) == r {
		t.Error("a new result is not seen")
	}
}
