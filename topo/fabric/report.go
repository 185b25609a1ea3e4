package fabric

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Report is a NodeTopology's spec in a fifth of its memory: values that many nodes
// share are stored once, and the GPUs next to an HCA are dropped. It never changes.
// A nil Report is empty.
type Report struct {
	rails        []rail
	accelerators []v1alpha1.Accelerator
	// shape is equal for nodes with equal accelerators.
	shape  string
	nvlink string
	// rare has the fields that few specs set; it is nil if none is set.
	rare *v1alpha1.NodeTopologySpec
}

// rail is a v1alpha1.Rail.
type rail struct {
	*device
	far        *v1alpha1.Switch // Nil for none.
	switchPort unique.Handle[string]
	guid       uint64             // 0 for unknown.
	since      int64              // Seconds since 1970, 0 for unknown.
	counters   *v1alpha1.Counters // Nil for no errors, as of most.
}

// device has the fields of a rail that nodes of one model share.
type device struct {
	rail, plane, number, rate, confidence int32
	hca, id, role, netdev, linkLayer      string
	state                                 v1alpha1.LinkState
	source                                v1alpha1.Source
}

// position numbers the rails and planes.
func (d *device) position() int32 { return d.rail*maxPlane + d.plane }

// maxRail and maxPlane bound the numbers that a report can use.
const maxRail, maxPlane = 128, 16

func sameRail(a, b *rail) bool {
	return (a.device == b.device || *a.device == *b.device) && a.switchPort == b.switchPort && a.guid == b.guid &&
		a.since == b.since && (a.counters == b.counters || reflect.DeepEqual(a.counters, b.counters)) &&
		(a.far == b.far || a.far != nil && b.far != nil && *a.far == *b.far)
}

// Equal reports whether two reports are equal.
func (r *Report) Equal(o *Report) bool {
	return r.nvlink == o.nvlink && slices.Equal(r.accelerators, o.accelerators) && reflect.DeepEqual(r.rare, o.rare) &&
		slices.EqualFunc(r.rails, o.rails, func(a, b rail) bool { return sameRail(&a, &b) })
}

// Spec returns the spec without the GPUs of the rails.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	s := *r.more()
	s.Accelerators, s.NVLinkDomain = r.accelerators, r.nvlink
	s.Rails = make([]v1alpha1.Rail, len(r.rails))
	for i, in := range r.rails {
		s.Rails[i] = v1alpha1.Rail{
			Rail: in.rail, Plane: in.plane, Port: in.number, RateGbps: in.rate, Confidence: in.confidence,
			HCA: in.hca, ID: in.id, Role: in.role, Netdev: in.netdev, LinkLayer: in.linkLayer, LinkState: in.state,
			Source: in.source, GUID: guidText(in.guid), Switch: in.far, SwitchPort: in.switchPort.Value(), Counters: in.counters,
		}
		if in.since != 0 {
			s.Rails[i].Since = new(metav1.NewTime(time.Unix(in.since, 0).UTC()))
		}
	}
	return &s
}

// Product returns the most numerous accelerator, empty without any.
func (r *Report) Product() string {
	var most v1alpha1.Accelerator
	for _, a := range r.accelerators {
		if a.Count > most.Count {
			most = a
		}
	}
	return most.Product
}

// FabricPorts counts the ports of role fabric, and among them the ones with a known switch.
func (r *Report) FabricPorts() (known, all int) {
	for i := range r.rails {
		if r.rails[i].role != string(machine.RoleFabric) {
			continue
		}
		all++
		if r.rails[i].far != nil && r.rails[i].far.ID != "" {
			known++
		}
	}
	return known, all
}

// Accelerators counts the reported accelerators.
func (r *Report) Accelerators() int {
	n := 0
	for _, a := range r.accelerators {
		n += int(a.Count)
	}
	return n
}

func (r *Report) nvlinkDomain() string {
	if r == nil {
		return ""
	}
	return r.nvlink
}

func (r *Report) path() []string             { return r.more().Path }
func (r *Report) uplinks() []v1alpha1.Uplink { return r.more().Uplinks }

// Stale returns the sources with an old answer in the report.
func (r *Report) Stale() []v1alpha1.StaleSource { return r.more().Stale }

// more returns rare, or an empty spec.
func (r *Report) more() *v1alpha1.NodeTopologySpec {
	if r == nil || r.rare == nil {
		return &v1alpha1.NodeTopologySpec{}
	}
	return r.rare
}

// Reader makes reports that share equal values. It is for one goroutine.
type Reader struct {
	devices  map[device]*device
	switches map[v1alpha1.Switch]*v1alpha1.Switch
	last     Report // Nodes of one model come one after the other.
}

// NewReader returns a reader.
func NewReader() *Reader {
	return &Reader{devices: map[device]*device{}, switches: map[v1alpha1.Switch]*v1alpha1.Switch{}}
}

// maxShared bounds the values that a reader remembers: false reports cannot fill
// its memory.
const maxShared = 16384

// share returns the pointer that equal values share.
func share[T comparable](known map[T]*T, v T) *T {
	p := known[v]
	if p == nil {
		if len(known) == maxShared {
			clear(known)
		}
		p = new(v)
		known[v] = p
	}
	return p
}

// Read makes the report of a spec, nil for nil.
func (rd *Reader) Read(s *v1alpha1.NodeTopologySpec) *Report {
	if s == nil {
		return nil
	}
	if !slices.Equal(s.Accelerators, rd.last.accelerators) {
		rd.last = Report{accelerators: s.Accelerators, shape: shapeOf(s.Accelerators)}
	}
	r := &Report{
		rails: make([]rail, len(s.Rails)), accelerators: rd.last.accelerators, shape: rd.last.shape, nvlink: s.NVLinkDomain,
	}
	for i := range s.Rails {
		r.rails[i] = rd.rail(&s.Rails[i])
	}
	rare := v1alpha1.NodeTopologySpec{
		Path: s.Path, PathSource: s.PathSource, Uplinks: s.Uplinks, Skipped: s.Skipped, Stale: s.Stale,
	}
	if !reflect.ValueOf(rare).IsZero() {
		r.rare = &rare
	}
	return r
}

func (rd *Reader) rail(in *v1alpha1.Rail) rail {
	out := rail{switchPort: unique.Make(in.SwitchPort), guid: guidOf(in.GUID), counters: in.Counters}
	out.device = share(rd.devices, device{
		rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
		hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
		state: in.LinkState, source: in.Source,
	})
	if in.Since != nil {
		out.since = in.Since.Unix()
	}
	if in.Switch != nil {
		out.far = share(rd.switches, *in.Switch)
	}
	return out
}

func shapeOf(all []v1alpha1.Accelerator) string {
	var shape strings.Builder
	for _, a := range all {
		shape.WriteString(a.Product + "*" + strconv.Itoa(int(a.Count)) + ",")
	}
	return shape.String()
}

// guidOf parses a GUID, with or without colons; 0 if it is empty or invalid.
func guidOf(s string) uint64 {
	guid, err := strconv.ParseUint(strings.ReplaceAll(s, ":", ""), 16, 64)
	if err != nil {
		return 0
	}
	return guid
}

// guidText formats a GUID as sysfs does.
func guidText(guid uint64) string {
	if guid == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x", guid>>48, guid>>32&0xffff, guid>>16&0xffff, guid&0xffff)
}
