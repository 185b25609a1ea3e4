package fabric

import (
	"fmt"
	"hash/fnv"
	"hash/maphash"
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

// Report is a NodeTopology's spec in a tenth of its memory: what many nodes have
// in common is stored once, and the GPUs next to an HCA are not stored. It never
// changes. A nil one is empty.
type Report struct {
	rails        []rail
	accelerators []v1alpha1.Accelerator
	// shape is equal for nodes with equal accelerators.
	shape  string
	nvlink string
	// rare is what few reports have, nil for none of it. It has the rails if
	// their GUIDs are spelled in an unusual way.
	rare *v1alpha1.NodeTopologySpec
}

// rail is a v1alpha1.Rail.
type rail struct {
	*device
	far        *v1alpha1.Switch // Nil for none.
	switchPort unique.Handle[string]
	guid       uint64             // See [guidOf].
	since      int64              // Seconds since 1970, 0 for unknown.
	counters   *v1alpha1.Counters // Nil for no errors, as of most.
}

// device is what nodes of one model have in common.
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

// Equal reports whether two reports are equal in all that is stored.
func (r *Report) Equal(o *Report) bool {
	return r.nvlink == o.nvlink && slices.Equal(r.accelerators, o.accelerators) && reflect.DeepEqual(r.rare, o.rare) &&
		slices.EqualFunc(r.rails, o.rails, func(a, b rail) bool { return sameRail(&a, &b) })
}

// Spec is the spec without GPUs.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	var s v1alpha1.NodeTopologySpec
	if r.rare != nil {
		s = *r.rare
	}
	s.Accelerators, s.NVLinkDomain = r.accelerators, r.nvlink
	if s.Rails != nil {
		return &s
	}
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

// Product is the most numerous accelerator's, empty without any.
func (r *Report) Product() string {
	var most v1alpha1.Accelerator
	for _, a := range r.accelerators {
		if a.Count > most.Count {
			most = a
		}
	}
	return most.Product
}

// FabricPorts is how many ports of role fabric there are, and of how many the
// switch is known.
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

// Accelerators is how many of them the node has by the report.
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

func (r *Report) path() []string {
	if r == nil || r.rare == nil {
		return nil
	}
	return r.rare.Path
}

// Stale are the sources of which an old answer is in the report.
func (r *Report) Stale() []v1alpha1.StaleSource {
	if r == nil || r.rare == nil {
		return nil
	}
	return r.rare.Stale
}

func (r *Report) uplinks() []v1alpha1.Uplink {
	if r == nil || r.rare == nil {
		return nil
	}
	return r.rare.Uplinks
}

// Reader makes reports. It is for one goroutine.
type Reader struct {
	devices  shared[device]
	switches shared[v1alpha1.Switch]
	last     Report // Nodes of one model come one after the other.
}

// NewReader returns a reader that shares what its reports have in common.
func NewReader() *Reader {
	seed := maphash.MakeSeed()
	return &Reader{devices: shared[device]{seed: seed}, switches: shared[v1alpha1.Switch]{seed: seed}}
}

// shared has values that were seen, at most so many: false reports cannot
// fill it.
type shared[T comparable] struct {
	seed  maphash.Seed
	slots [16384]*T
}

func (s *shared[T]) get(v T) *T {
	slot := &s.slots[maphash.Comparable(s.seed, v)%uint64(len(s.slots))]
	if *slot == nil || **slot != v {
		*slot = new(v)
	}
	return *slot
}

// Read makes the report of a spec, nil for nil. Nothing of it is shared but
// strings and lists that are not rails.
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
	rare := v1alpha1.NodeTopologySpec{
		Path: s.Path, PathSource: s.PathSource, Uplinks: s.Uplinks, Skipped: s.Skipped,
		Stale: s.Stale,
	}
	for i := range s.Rails {
		r.rails[i] = rd.rail(&s.Rails[i])
		if guidText(r.rails[i].guid) != s.Rails[i].GUID {
			rare.Rails = s.Rails
		}
	}
	if rare.Rails != nil {
		rare.Rails = slices.Clone(rare.Rails)
		for i := range rare.Rails {
			rare.Rails[i].GPUs = nil
		}
	}
	if len(rare.Path) > 0 || rare.PathSource != "" || len(rare.Uplinks) > 0 || len(rare.Skipped) > 0 ||
		len(rare.Stale) > 0 || rare.Rails != nil {
		r.rare = &rare
	}
	return r
}

func (rd *Reader) rail(in *v1alpha1.Rail) rail {
	out := rail{switchPort: unique.Make(in.SwitchPort), guid: guidOf(in.GUID), counters: in.Counters}
	out.device = rd.devices.get(device{
		rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
		hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
		state: in.LinkState, source: in.Source,
	})
	if in.Since != nil {
		out.since = in.Since.Unix()
	}
	if in.Switch != nil {
		out.far = rd.switches.get(*in.Switch)
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

// guidOf is a number for a GUID, 0 for none. What is no GUID is hashed.
func guidOf(s string) uint64 {
	plain := strings.ReplaceAll(s, ":", "")
	if guid, err := strconv.ParseUint(plain, 16, 64); err == nil || plain == "" {
		return guid
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // Never fails.
	return h.Sum64()
}

// guidText is a GUID as sysfs spells it.
func guidText(guid uint64) string {
	if guid == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x", guid>>48, guid>>32&0xffff, guid>>16&0xffff, guid&0xffff)
}
