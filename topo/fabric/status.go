package fabric

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// nodeElement is what the tree says of a node. It changes nothing but the
// record, so that several can be made at the same time.
func (m *Map) nodeElement(r *record) *Element {
	e := &Element{Name: r.name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
	e.Findings = m.findings(r)
	e.Reasons = m.reasons(r, e.Findings)
	switch {
	case !r.ready:
		e.Status, e.Nodes.NotReady = v1alpha1.StatusNotReady, 1
	case len(e.Reasons) > 0:
		e.Status, e.Nodes.Degraded = v1alpha1.StatusDegraded, 1
	default:
		e.Nodes.Ready = 1
	}
	e.encodeNode()
	return e
}

// findings are all that is wrong with a node.
func (m *Map) findings(r *record) []Finding {
	out := r.bad
	if r.cell == nil {
		out = r.alone()
	}
	cabling := len(out)
	out = slices.Clip(out) // Snapshots share it: appending must not write to it.
	for i := range r.ports {
		p := &r.ports[i]
		if o := m.other(p.guid, r); o != "" {
			f := p.finding(r.name)
			f.Kind, f.Other = Duplicate, o
			f.Since = time.Time{} // The port's state is no reason.
			out = append(out, f)
		}
	}
	if r.badPath || r.dissent != 0 {
		f := Finding{Kind: BadPath, Node: r.name}
		if r.dissent != 0 {
			f.Other = m.contradicted(r)
		}
		out = append(out, f)
	}
	if len(out) > cabling {
		sortFindings(out)
	}
	return out
}

// other is the first other node that reports a GUID, "" if none does.
func (m *Map) other(guid uint64, r *record) string {
	for _, o := range m.doubles[guid] {
		if o != r {
			return o.name
		}
	}
	return ""
}

// contradicted is the group whose other members say that it is elsewhere.
func (m *Map) contradicted(r *record) string {
	for i, b := range r.chain {
		if b != nil && r.dissent&(1<<i) != 0 {
			return b.key[1:]
		}
	}
	return ""
}

// reasons say why a node is not Ready, and note when that may change by itself.
func (m *Map) reasons(r *record, findings []Finding) []Reason {
	var out []Reason
	if !r.ready {
		out = append(out, Reason{Kind: ReasonNodeNotReady, Since: r.since})
	}
	r.overdue, r.look = false, time.Time{}
	if r.seen && !r.beat.IsZero() {
		late := r.beat.Add(m.staleAfter)
		switch {
		case m.now.After(late):
			out = append(out, Reason{Kind: ReasonStale, Since: late})
			r.overdue = true
		case r.beat.After(m.now.Add(maxSkew)):
			out = append(out, Reason{Kind: ReasonClock})
			r.overdue = true
			r.look = r.beat.Add(-maxSkew)
		default:
			r.look = late.Add(1)
		}
	}
	for _, kind := range []Fault{Dead, Missing, Miscabled, Duplicate, BadPath} {
		if r := reasonOf(kind, findings); r.Count > 0 {
			out = append(out, r)
		}
	}
	return out
}

// reasonOf sums the findings of a kind up: since the first of them, if that is
// known of all.
func reasonOf(kind Fault, findings []Finding) Reason {
	r := Reason{Kind: string(kind)}
	known := true
	for i := range findings {
		f := &findings[i]
		if f.Kind != kind {
			continue
		}
		r.Count++
		known = known && !f.Since.IsZero()
		if r.Count == 1 || f.Since.Before(r.Since) {
			r.Since = f.Since
		}
	}
	if !known {
		r.Since = time.Time{}
	}
	return r
}
