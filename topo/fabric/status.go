package fabric

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// nodeElement is what the tree shows of a node. It changes nothing: several are
// made at the same time.
func (b *Builder) nodeElement(n *node) *Element {
	e := &Element{Name: n.Name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
	e.Findings = b.findings(n)
	e.Reasons = b.reasons(n, e.Findings)
	switch {
	case !n.Ready:
		e.Status, e.Nodes.NotReady = v1alpha1.StatusNotReady, 1
	case len(e.Reasons) > 0:
		e.Status, e.Nodes.Degraded = v1alpha1.StatusDegraded, 1
	default:
		e.Nodes.Ready = 1
	}
	e.encode(nil)
	return e
}

// findings are all that is wrong with a node.
func (b *Builder) findings(n *node) []Finding {
	out := n.cabling
	if n.group == nil {
		out = n.alone()
	}
	cabling := len(out)
	out = slices.Clip(out) // Snapshots share it: appending must not write to it.
	for i := range n.ports {
		p := &n.ports[i]
		if o := b.hcas.other(p.guid, n); o != "" {
			f := p.finding(n.Name)
			f.Kind, f.Other = Duplicate, o
			f.Since = time.Time{} // The port's state is no reason.
			out = append(out, f)
		}
	}
	if n.badPath || n.dissent != 0 {
		f := Finding{Kind: BadPath, Node: n.Name}
		if n.dissent != 0 {
			f.Other = n.contradicted()
		}
		out = append(out, f)
	}
	if len(out) > cabling {
		sortFindings(out)
	}
	return out
}

// contradicted is the group of which the other members report another one
// above.
func (n *node) contradicted() string {
	for i, d := range n.chain {
		if d != nil && n.dissent&(1<<i) != 0 {
			return d.key[1:]
		}
	}
	return ""
}

// reasons are why a node is not Ready.
func (b *Builder) reasons(n *node, findings []Finding) []Reason {
	var out []Reason
	if !n.Ready {
		out = append(out, Reason{Kind: ReasonNodeNotReady, Since: n.Since.UTC()})
	}
	if reason, _ := b.heartbeat(n); reason.Kind != "" {
		out = append(out, reason)
	}
	for _, kind := range []Fault{Dead, Missing, Miscabled, Duplicate, BadPath} {
		if r := reasonOf(kind, findings); r.Count > 0 {
			out = append(out, r)
		}
	}
	return out
}

// heartbeat is what is wrong with a node's heartbeat, and when that changes by
// itself; zero for never.
func (b *Builder) heartbeat(n *node) (reason Reason, next time.Time) {
	late := n.Heartbeat.Add(b.staleAfter)
	switch {
	case n.Report == nil || n.Heartbeat.IsZero():
		return Reason{}, time.Time{}
	case b.now.After(late):
		return Reason{Kind: ReasonStale, Since: late.UTC()}, time.Time{}
	case n.Heartbeat.After(b.now.Add(maxSkew)):
		return Reason{Kind: ReasonClock}, n.Heartbeat.Add(-maxSkew)
	}
	return Reason{}, late.Add(1)
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
