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
	"k8s.io/utils/ptr"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Report is a NodeTopology's spec in a fifth of its memory: values that many nodes share are stored once, and the GPUs
// next to an HCA are dropped. It never changes.
type Report struct {
	// Rest is the spec without its rails.
	Rest  v1alpha1.NodeTopologySpec
	rails []rail
}

// rail is a v1alpha1.Rail. Zero values stand for what is absent.
type rail struct {
	device     unique.Handle[device]
	far        unique.Handle[v1alpha1.Switch]
	switchPort unique.Handle[string]
	counters   unique.Handle[v1alpha1.Counters]
	guid       uint64
	since      int64 // Seconds since 1970.
}

// device has the fields of a rail that nodes of one model share.
type device struct {
	rail, plane, number, rate, confidence int32
	hca, id, role, netdev, linkLayer      string
	state                                 v1alpha1.LinkState
	source                                v1alpha1.Source
}

// Read makes the report of a spec.
func Read(s *v1alpha1.NodeTopologySpec) *Report {
	r := &Report{Rest: *s, rails: make([]rail, len(s.Rails))}
	r.Rest.Rails = nil
	for i := range s.Rails {
		in, out := &s.Rails[i], &r.rails[i]
		out.device = unique.Make(device{
			rail: in.Rail, plane: in.Plane, number: in.Port, rate: in.RateGbps, confidence: in.Confidence,
			hca: in.HCA, id: in.ID, role: in.Role, netdev: in.Netdev, linkLayer: in.LinkLayer,
			state: in.LinkState, source: in.Source,
		})
		out.far, out.switchPort = unique.Make(ptr.Deref(in.Switch, v1alpha1.Switch{})), unique.Make(in.SwitchPort)
		out.counters = unique.Make(ptr.Deref(in.Counters, v1alpha1.Counters{}))
		if guid, err := strconv.ParseUint(strings.ReplaceAll(in.GUID, ":", ""), 16, 64); err == nil {
			out.guid = guid
		}
		if in.Since != nil {
			out.since = in.Since.Unix()
		}
	}
	return r
}

func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// Equal reports whether two reports are equal.
func (r *Report) Equal(o *Report) bool {
	return slices.Equal(r.rails, o.rails) && reflect.DeepEqual(r.Rest, o.Rest)
}

// Spec returns the spec without the GPUs of the rails.
func (r *Report) Spec() *v1alpha1.NodeTopologySpec {
	s := r.Rest
	s.Rails = make([]v1alpha1.Rail, len(r.rails))
	for i := range r.rails {
		in := &r.rails[i]
		d := in.device.Value()
		s.Rails[i] = v1alpha1.Rail{
			Rail: d.rail, Plane: d.plane, Port: d.number, RateGbps: d.rate, Confidence: d.confidence,
			HCA: d.hca, ID: d.id, Role: d.role, Netdev: d.netdev, LinkLayer: d.linkLayer, LinkState: d.state,
			Source: d.source, Switch: orNil(in.far.Value()), SwitchPort: in.switchPort.Value(),
			Counters: orNil(in.counters.Value()),
		}
		if in.since != 0 {
			s.Rails[i].Since = new(metav1.NewTime(time.Unix(in.since, 0).UTC()))
		}
		if g := in.guid; g != 0 { // As sysfs writes it.
			s.Rails[i].GUID = fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
		}
	}
	return &s
}

// Product returns the most numerous accelerator, empty without any.
func (r *Report) Product() string {
	var most v1alpha1.Accelerator
	for _, a := range r.Rest.Accelerators {
		if a.Count > most.Count {
			most = a
		}
	}
	return most.Product
}

// FabricPorts counts the ports of role fabric, and among them the ones with a known switch.
func (r *Report) FabricPorts() (known, all int) {
	for i := range r.rails {
		if r.rails[i].device.Value().role == string(machine.RoleFabric) {
			all++
			if r.rails[i].far.Value().ID != "" {
				known++
			}
		}
	}
	return known, all
}
