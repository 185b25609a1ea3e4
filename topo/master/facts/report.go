package facts

import (
	"slices"
	"sync/atomic"
	"time"
	"unique"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Report is what is used of a NodeTopology. Nothing of it changes but the
// heartbeat.
type Report struct {
	Name, UID  string
	Generation int64
	// Owner is the UID of the Node that the object says it belongs to, "" if
	// it does not say that it belongs to the Node of its own name.
	Owner string
	// Walk is status.walk.
	Walk []string

	beat atomic.Int64 // Microseconds since 1970, 0 for none.

	accelerators []accelerator
	nvlink       unique.Handle[string]
	rails        []rail
	path         []string
	pathSource   v1alpha1.Source
	uplinks      []v1alpha1.Uplink
	skipped      []v1alpha1.Skipped
}

type accelerator struct {
	product unique.Handle[string]
	count   int32
}

// rail is a v1alpha1.Rail in a quarter of the memory: what is alike on many
// nodes is kept once. The GPUs next to an HCA are not kept: nothing here uses
// them.
type rail struct {
	port       unique.Handle[port]
	far        unique.Handle[v1alpha1.Switch] // The zero Switch for none.
	switchPort unique.Handle[string]
	guid       string
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
	if at := r.beat.Load(); at != 0 {
		return time.UnixMicro(at).UTC()
	}
	return time.Time{}
}

// Beat records a later heartbeat of the same report.
func (r *Report) Beat(at time.Time) {
	if !at.IsZero() {
		r.beat.Store(at.UnixMicro())
	}
}

// SameSpec tells whether a newer version of the object says nothing new but
// the heartbeat. The API server counts the generation up with every change of
// the spec.
func (r *Report) SameSpec(newer *Report) bool {
	return r.UID == newer.UID && r.Generation == newer.Generation && r.Generation != 0 && r.Owner == newer.Owner &&
		slices.Equal(r.Walk, newer.Walk)
}

func readReport(obj any) (*Report, bool) {
	t, ok := obj.(*v1alpha1.NodeTopology)
	if !ok {
		return nil, false
	}
	r := &Report{
		Name: t.Name, UID: string(t.UID), Generation: t.Generation, Walk: t.Status.Walk,
		nvlink: unique.Make(t.Spec.NVLinkDomain), path: t.Spec.Path, pathSource: t.Spec.PathSource,
		uplinks: t.Spec.Uplinks, skipped: t.Spec.Skipped,
	}
	if t.Status.HeartbeatTime != nil {
		r.Beat(t.Status.HeartbeatTime.Time)
	}
	for i := range t.OwnerReferences {
		o := &t.OwnerReferences[i]
		if o.APIVersion == "v1" && o.Kind == "Node" && o.Name == t.Name {
			r.Owner = string(o.UID)
		}
	}
	for _, a := range t.Spec.Accelerators {
		r.accelerators = append(r.accelerators, accelerator{unique.Make(a.Product), a.Count})
	}
	r.rails = make([]rail, len(t.Spec.Rails))
	for i := range t.Spec.Rails {
		r.rails[i] = shrink(&t.Spec.Rails[i])
	}
	return r, true
}

func shrink(in *v1alpha1.Rail) rail {
	out := rail{
		port: unique.Make(port{
			rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
			hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
			state: in.LinkState, source: in.Source,
		}),
		switchPort: unique.Make(in.SwitchPort), guid: in.GUID,
	}
	var far v1alpha1.Switch
	if in.Switch != nil {
		far = *in.Switch
	}
	out.far = unique.Make(far)
	return out
}

// Spec is the report as it came, without GPUs.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	s := &v1alpha1.NodeTopologySpec{
		NVLinkDomain: r.nvlink.Value(), Path: r.path, PathSource: r.pathSource,
		Uplinks: r.uplinks, Skipped: r.skipped, Rails: make([]v1alpha1.Rail, len(r.rails)),
	}
	for _, a := range r.accelerators {
		s.Accelerators = append(s.Accelerators, v1alpha1.Accelerator{Product: a.product.Value(), Count: a.count})
	}
	for i := range r.rails {
		s.Rails[i] = r.rails[i].grow()
	}
	return s
}

func (r *rail) grow() v1alpha1.Rail {
	p := r.port.Value()
	out := v1alpha1.Rail{
		Rail: p.rail, Plane: p.plane, Port: p.number, RateGbps: p.rate, Confidence: p.confidence,
		HCA: p.hca, ID: p.id, Role: p.role, Netdev: p.netdev, LinkLayer: p.linkLayer, LinkState: p.state,
		Source: p.source, GUID: r.guid, SwitchPort: r.switchPort.Value(),
	}
	if far := r.far.Value(); far != (v1alpha1.Switch{}) {
		out.Switch = &far
	}
	return out
}

// Leaves calls yield with the ID of every switch that answered a rail's port
// over InfiniBand.
func (r *Report) Leaves(yield func(id string)) {
	for i := range r.rails {
		p := r.rails[i].port.Value()
		if far := r.rails[i].far.Value(); p.source == v1alpha1.SourceIB && far.ID != "" {
			yield(far.ID)
		}
	}
}

// Product is the most numerous accelerator's, "" without any.
func (r *Report) Product() string {
	product, most := "", int32(0)
	for _, a := range r.accelerators {
		if a.count > most {
			product, most = a.product.Value(), a.count
		}
	}
	return product
}

// Accelerators is how many the report says that the node has.
func (r *Report) Accelerators() int32 {
	var n int64
	for _, a := range r.accelerators {
		n += int64(a.count)
	}
	return count(n)
}
