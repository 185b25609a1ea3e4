package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// degraded are the findings about links that the node itself found to be degraded. They do not depend on where cables
// end, and they change no status: the node works.
func (r *Report) degraded(node string) (out []Finding) {
	for i := range r.Rest.DegradedLinks {
		d := &r.Rest.DegradedLinks[i]
		f := Finding{
			Kind: Degraded, Node: node, HCA: d.HCA, ID: d.ID, Port: d.Port, Link: d.Link, End: d.End, What: d.What,
			Value: d.Value, Limit: d.Limit + " (" + d.Source + ")", Since: wellknown.Moment(d.Since.Time),
		}
		if at := slices.IndexFunc(r.rails, func(r rail) bool {
			of := r.device.Value()
			return of.id == d.ID && (d.Port == 0 || of.number == d.Port) && of.netdev == d.Netdev
		}); at >= 0 {
			of := r.rails[at].device.Value()
			f.Rail, f.Plane = of.rail, of.plane
		}
		out = append(out, f)
	}
	return out
}
