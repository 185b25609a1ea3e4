package informers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
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

	accelerators []v1alpha1.Accelerator
	nvlink       string
	rails        []rail
	rare         *v1alpha1.NodeTopologySpec // What few reports have, nil for none of it.
}

// rail is a v1alpha1.Rail in a fifth of the memory: what many nodes have in
// common is stored once. The GPUs next to an HCA are not kept: nothing in
// topo-master uses them.
type rail struct {
	port       unique.Handle[port]
	peer       unique.Handle[v1alpha1.Switch] // Empty for none.
	switchPort unique.Handle[string]
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
		accelerators: t.Spec.Accelerators, nvlink: t.Spec.NVLinkDomain, rails: make([]rail, len(t.Spec.Rails)),
	}
	if s := &t.Spec; len(s.Path) > 0 || len(s.Uplinks) > 0 || len(s.Skipped) > 0 || s.PathSource != "" {
		r.rare = &v1alpha1.NodeTopologySpec{
			Path: s.Path, PathSource: s.PathSource, Uplinks: s.Uplinks, Skipped: s.Skipped,
		}
	}
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
	out := rail{switchPort: unique.Make(in.SwitchPort), guid: guidOf(in.GUID)}
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
	var s v1alpha1.NodeTopologySpec
	if r.rare != nil {
		s = *r.rare
	}
	s.Accelerators, s.NVLinkDomain, s.Rails = r.accelerators, r.nvlink, make([]v1alpha1.Rail, len(r.rails))
	for i := range r.rails {
		in := &r.rails[i]
		p := in.port.Value()
		out := &s.Rails[i]
		*out = v1alpha1.Rail{
			Rail: p.rail, Plane: p.plane, Port: p.number, RateGbps: p.rate, Confidence: p.confidence,
			HCA: p.hca, ID: p.id, Role: p.role, Netdev: p.netdev, LinkLayer: p.linkLayer, LinkState: p.state,
			Source: p.source, GUID: in.guid.String(), SwitchPort: in.switchPort.Value(),
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
	for _, a := range r.accelerators {
		if a.Count > most {
			product, most = a.Product, a.Count
		}
	}
	return product
}

// Accelerators is how many of them the node has by the report.
func (r *Report) Accelerators() int32 {
	var n int64
	for _, a := range r.accelerators {
		n += int64(a.Count)
	}
	return bounded(n)
}

// guid is a GUID as a report spells it. As sysfs does, 946d:ae03:00e5:a3c0, it
// is a number, which takes half the memory.
type guid struct {
	number uint64
	odd    *string // Any other spelling.
}

func guidOf(text string) guid {
	if text == "" {
		return guid{}
	}
	number, err := strconv.ParseUint(strings.ReplaceAll(text, ":", ""), 16, 64)
	if g := (guid{number: number}); err == nil && g.String() == text {
		return g
	}
	return guid{odd: &text}
}

// String is the GUID as it came.
func (g guid) String() string {
	switch {
	case g.odd != nil:
		return *g.odd
	case g.number == 0:
		return ""
	}
	n := g.number
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}
