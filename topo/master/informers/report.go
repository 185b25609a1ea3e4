package informers

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Report is what is used of a NodeTopology. Nothing of it changes but the
// heartbeat.
type Report struct {
	Name       string
	ID         ID
	Generation int64
	// Owner is the Node that the object says it belongs to, zero if it does
	// not say that it belongs to the Node of its own name.
	Owner ID
	// Walk is status.walk.
	Walk []string

	beat atomic.Int64 // Microseconds since 1970, 0 for none.

	accelerators []v1alpha1.Accelerator
	nvlink       string
	rails        []rail
	rare         *rare // Nil if there is none of it.
}

// rare is what few reports have.
type rare struct {
	path       []string
	pathSource v1alpha1.Source
	uplinks    []v1alpha1.Uplink
	skipped    []v1alpha1.Skipped
}

// rail is a v1alpha1.Rail in a fifth of the memory: what is alike on many nodes
// is kept once. The GPUs next to an HCA are not kept: nothing here uses them.
type rail struct {
	port       *port
	far        *v1alpha1.Switch
	switchPort string
	guid       guid
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
	return r.ID == newer.ID && r.Generation == newer.Generation && r.Generation != 0 && r.Owner == newer.Owner &&
		slices.Equal(r.Walk, newer.Walk)
}

// reportReader shares what is alike in many reports: a fleet's HCAs have few
// names and addresses, and a leaf is on as many reports as it has nodes. It is
// for one goroutine.
type reportReader struct {
	words    words
	ports    map[port]*port
	switches map[v1alpha1.Switch]*v1alpha1.Switch
	models   map[string][]v1alpha1.Accelerator
}

func newReportReader() *reportReader {
	return &reportReader{
		words: words{}, ports: map[port]*port{}, switches: map[v1alpha1.Switch]*v1alpha1.Switch{},
		models: map[string][]v1alpha1.Accelerator{},
	}
}

func (r *reportReader) read(obj any) (*Report, bool) {
	t, ok := obj.(*v1alpha1.NodeTopology)
	if !ok {
		return nil, false
	}
	s := &t.Spec
	out := &Report{
		Name: t.Name, ID: IDOf(string(t.UID)), Generation: t.Generation, Walk: t.Status.Walk,
		accelerators: r.model(s.Accelerators), nvlink: r.words.one(s.NVLinkDomain), rails: make([]rail, len(s.Rails)),
	}
	if t.Status.HeartbeatTime != nil {
		out.Beat(t.Status.HeartbeatTime.Time)
	}
	for i := range t.OwnerReferences {
		o := &t.OwnerReferences[i]
		if o.APIVersion == "v1" && o.Kind == "Node" && o.Name == t.Name {
			out.Owner = IDOf(string(o.UID))
		}
	}
	for i := range s.Rails {
		out.rails[i] = r.shrink(&s.Rails[i])
	}
	if len(s.Path) > 0 || len(s.Uplinks) > 0 || len(s.Skipped) > 0 || s.PathSource != "" {
		for i := range s.Path {
			s.Path[i] = r.words.one(s.Path[i])
		}
		out.rare = &rare{path: s.Path, pathSource: s.PathSource, uplinks: s.Uplinks, skipped: s.Skipped}
	}
	return out, true
}

// model shares the list of a node's accelerators among nodes of one model.
func (r *reportReader) model(in []v1alpha1.Accelerator) []v1alpha1.Accelerator {
	var key strings.Builder
	for _, a := range in {
		fmt.Fprintf(&key, "%d %q ", a.Count, a.Product)
	}
	known, ok := r.models[key.String()]
	if !ok {
		if len(r.models) >= maxWords {
			clear(r.models)
		}
		known = in
		r.models[key.String()] = known
	}
	return known
}

func (r *reportReader) shrink(in *v1alpha1.Rail) rail {
	out := rail{switchPort: r.words.one(in.SwitchPort), guid: guidOf(in.GUID)}
	out.port = one(r.ports, port{
		rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
		hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
		state: in.LinkState, source: in.Source,
	})
	if in.Since != nil {
		out.since = in.Since.Unix()
	}
	if in.Switch != nil {
		out.far = one(r.switches, *in.Switch)
	}
	return out
}

// Spec is the report as it came, without GPUs.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	s := &v1alpha1.NodeTopologySpec{
		Accelerators: r.accelerators, NVLinkDomain: r.nvlink, Rails: make([]v1alpha1.Rail, len(r.rails)),
	}
	if o := r.rare; o != nil {
		s.Path, s.PathSource, s.Uplinks, s.Skipped = o.path, o.pathSource, o.uplinks, o.skipped
	}
	for i := range r.rails {
		in := &r.rails[i]
		p := in.port
		s.Rails[i] = v1alpha1.Rail{
			Rail: p.rail, Plane: p.plane, Port: p.number, RateGbps: p.rate, Confidence: p.confidence,
			HCA: p.hca, ID: p.id, Role: p.role, Netdev: p.netdev, LinkLayer: p.linkLayer, LinkState: p.state,
			Source: p.source, GUID: in.guid.String(), SwitchPort: in.switchPort, Switch: in.far,
		}
		if in.since != 0 {
			s.Rails[i].Since = new(metav1.NewTime(time.Unix(in.since, 0).UTC()))
		}
	}
	return s
}

// Product is the most numerous accelerator's, "" without any.
func (r *Report) Product() string {
	product, most := "", int32(0)
	for _, a := range r.accelerators {
		if a.Count > most {
			product, most = a.Product, a.Count
		}
	}
	return product
}

// Accelerators is how many the report says that the node has.
func (r *Report) Accelerators() int32 {
	var n int64
	for _, a := range r.accelerators {
		n += int64(a.Count)
	}
	return count(n)
}
