package informers

import (
	"cmp"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// Report holds the used part of a NodeTopology. Only its heartbeat changes.
type Report struct {
	*fabric.Report
	Name string
	// Owner is the UID of the Node that owns the object, empty if the owner is not the Node with
	// the object's name.
	Owner types.UID
	// Cables holds the status of the node's cables; CablesSince is the time of its condition's last
	// transition, in seconds since 1970.
	Cables      Cables
	CablesSince int64
	// Tests has the newest result of each port that was tested.
	Tests []v1alpha1.LinkTest

	heartbeat atomic.Int64 // Microseconds since 1970, 0 for none.
}

// Heartbeat returns the time of the worker's last complete pass, by the worker's clock; zero if
// unknown.
func (r *Report) Heartbeat() time.Time {
	if at := r.heartbeat.Load(); at != 0 {
		return time.UnixMicro(at).UTC()
	}
	return time.Time{}
}

// GetObjectMeta is for client-go's keys.
func (r *Report) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: r.Name} }

// SameReport reports whether two versions differ at most in what topo-master
// itself writes about cables.
func (r *Report) SameReport(o *Report) bool {
	return r == o || r != nil && o != nil && r.Report == o.Report && r.Owner == o.Owner
}

// keep stores a newer heartbeat in the old report if nothing else changed.
func (r *Report) keep(old *Report) *Report {
	if r.Equal(old.Report) {
		r.Report = old.Report
	}
	if !r.SameReport(old) || !r.Cables.Equal(old.Cables) || r.CablesSince != old.CablesSince ||
		!reflect.DeepEqual(r.Tests, old.Tests) {
		return r
	}
	if at := r.heartbeat.Load(); at != 0 {
		old.heartbeat.Store(at)
	}
	return old
}

func readReport(t *v1alpha1.NodeTopology) *Report {
	spec := t.Spec
	spec.DegradedLinks = slices.Concat(spec.DegradedLinks, fabrictest.Degraded(t.Status.Tests, spec.Rails))
	r := &Report{Report: fabric.Read(&spec), Name: t.Name}
	for _, test := range t.Status.Tests {
		if len(test.Results) > 0 {
			test.Results = test.Results[:1:1]
			r.Tests = append(r.Tests, test)
		}
	}
	// A worker that makes a report writes its first heartbeat an hour later.
	if at := cmp.Or(t.Status.HeartbeatTime, &t.CreationTimestamp); !at.IsZero() {
		r.heartbeat.Store(at.UnixMicro())
	}
	r.Cables, r.CablesSince = readCables(&t.Status)
	for i := range t.OwnerReferences {
		o := &t.OwnerReferences[i]
		if o.APIVersion == "v1" && o.Kind == "Node" && o.Name == t.Name {
			r.Owner = o.UID
		}
	}
	return r
}
