package informers

import (
	"slices"
	"sync/atomic"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Report is what is used of a NodeTopology. Nothing of it changes but the
// heartbeat.
type Report struct {
	Name       string
	UID        types.UID
	Generation int64
	// Owner is the Node that the object belongs to, empty if its owner is not
	// the Node of its own name.
	Owner types.UID
	// Walk is status.walk.
	Walk []string

	heartbeat atomic.Int64 // Microseconds since 1970, 0 for none.

	spec  v1alpha1.NodeTopologySpec // Without rails.
	rails []rail
}

// rail is a v1alpha1.Rail in a fifth of the memory: what many nodes have in
// common is stored once. The GPUs next to an HCA are not kept: nothing in
// topo-master uses them.
type rail struct {
	port       unique.Handle[port]
	peer       unique.Handle[v1alpha1.Switch] // Empty for none.
	switchPort unique.Handle[string]
	guid       string
	since      int64 // Seconds since 1970, 0 for unknown.
}

// port is what nodes of one model have in common.
type port struct {
	rail, plane, number, rate, confidence int32
	hca, id, role, netdev, linkLayer      string
	state                                 v1alpha1.LinkState
	source                                v1alpha1.Source
}

// Heartbeat is when the worker last ended a pass, by its own clock; zero if
// unknown.
func (r *Report) Heartbeat() time.Time {
	if at := r.heartbeat.Load(); at != 0 {
		return time.UnixMicro(at).UTC()
	}
	return time.Time{}
}

// GetObjectMeta is for client-go's keys.
func (r *Report) GetObjectMeta() metav1.Object { return &metav1.ObjectMeta{Name: r.Name} }

// keep stores a newer heartbeat in the old report if nothing else changed. The
// API server counts the generation up with every change of the spec.
func (r *Report) keep(old *Report) *Report {
	if r.UID != old.UID || r.Generation != old.Generation || r.Generation == 0 || r.Owner != old.Owner ||
		!slices.Equal(r.Walk, old.Walk) {
		return r
	}
	if at := r.heartbeat.Load(); at != 0 {
		old.heartbeat.Store(at)
	}
	return old
}

func readReport(t *v1alpha1.NodeTopology) *Report {
	r := &Report{
		Name: t.Name, UID: t.UID, Generation: t.Generation, Walk: t.Status.Walk,
		spec: t.Spec, rails: make([]rail, len(t.Spec.Rails)),
	}
	r.spec.Rails = nil
	if at := t.Status.HeartbeatTime; at != nil && !at.IsZero() {
		r.heartbeat.Store(at.UnixMicro())
	}
	for i := range t.OwnerReferences {
		o := &t.OwnerReferences[i]
		if o.APIVersion == "v1" && o.Kind == "Node" && o.Name == t.Name {
			r.Owner = o.UID
		}
	}
	for i := range t.Spec.Rails {
		r.rails[i] = compact(&t.Spec.Rails[i])
	}
	return r
}

func compact(in *v1alpha1.Rail) rail {
	out := rail{switchPort: unique.Make(in.SwitchPort), guid: in.GUID}
	out.port = unique.Make(port{
		rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
		hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
		state: in.LinkState, source: in.Source,
	})
	if in.Since != nil {
		out.since = in.Since.Unix()
	}
	if in.Switch != nil {
		out.peer = unique.Make(*in.Switch)
	}
	return out
}

// Spec is the report as it came, without GPUs.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	s := r.spec
	s.Rails = make([]v1alpha1.Rail, len(r.rails))
	for i := range r.rails {
		in := &r.rails[i]
		p := in.port.Value()
		out := &s.Rails[i]
		*out = v1alpha1.Rail{
			Rail: p.rail, Plane: p.plane, Port: p.number, RateGbps: p.rate, Confidence: p.confidence,
			HCA: p.hca, ID: p.id, Role: p.role, Netdev: p.netdev, LinkLayer: p.linkLayer, LinkState: p.state,
			Source: p.source, GUID: in.guid, SwitchPort: in.switchPort.Value(),
		}
		if in.peer != (unique.Handle[v1alpha1.Switch]{}) {
			out.Switch = new(in.peer.Value())
		}
		if in.since != 0 {
			out.Since = new(metav1.NewTime(time.Unix(in.since, 0).UTC()))
		}
	}
	return &s
}

// Product is the most numerous accelerator's, empty without any.
func (r *Report) Product() string {
	product, most := "", int32(0)
	for _, a := range r.spec.Accelerators {
		if a.Count > most {
			product, most = a.Product, a.Count
		}
	}
	return product
}

// Accelerators is how many of them the node has by the report.
func (r *Report) Accelerators() int32 {
	var n int64
	for _, a := range r.spec.Accelerators {
		n += int64(a.Count)
	}
	return bounded(n)
}
