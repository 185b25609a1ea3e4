package fabric

import (
	"math/bits"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// maxSkew bounds how far ahead a worker's clock may be.
const maxSkew = time.Minute

// heartbeat returns the fault of a node's heartbeat.
func (b *Builder) heartbeat(n *node) Reason {
	late := n.Heartbeat.Add(StaleAfter)
	switch {
	case n.Heartbeat.IsZero():
	case b.now.After(late):
		return Reason{Kind: ReasonStale, Since: wellknown.Moment(late)}
	case n.Heartbeat.After(b.now.Add(maxSkew)):
		return Reason{Kind: ReasonClock}
	}
	return Reason{}
}

// cause holds the inputs of a node's element.
type cause struct {
	print   uint64
	outcome *outcome
	dissent uint32
	alien   bool
}

// show makes the node's element, unless it follows from the same as the last or is equal.
func (n *node) show(known *symbols, now time.Time) {
	by := cause{print: n.print, dissent: n.class.dissent, alien: n.alien}
	if n.group != nil {
		by.outcome = n.group.outcome
	}
	if n.shown != nil && n.cause == by {
		return
	}
	n.cause, n.waits = by, time.Time{}
	findings := n.findings(known)
	for i := range findings {
		if f := &findings[i]; f.waits(now) {
			n.waits = f.Settles
		}
	}
	e := &Element{
		Name: n.Name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady,
		Findings: findings, Reasons: n.reasons(findings, now),
	}
	switch {
	case !n.Ready:
		e.Status, e.Nodes.NotReady = v1alpha1.StatusNotReady, 1
	case slices.ContainsFunc(e.Reasons, Reason.degrades):
		e.Status, e.Nodes.Degraded = v1alpha1.StatusDegraded, 1
	default:
		e.Nodes.Ready = 1
	}
	if was := n.shown; was != nil && was.Status == e.Status && slices.Equal(was.Findings, findings) &&
		slices.Equal(was.Reasons, e.Reasons) {
		return
	}
	e.encode()
	n.shown = e
}

// findings lists all faults of a node.
func (n *node) findings(known *symbols) []Finding {
	var out []Finding
	if n.group != nil {
		out = slices.Clip(n.group.findings[n.index]) // Snapshots share it: appending must not write to it.
	}
	for i := 0; i < len(n.links.ports) && n.group == nil; i++ {
		out = append(out, n.links.ports[i].finding(n.Name, known.ids))
	}
	cabling := len(out)
	for i := range n.links.ports {
		port := &n.links.ports[i]
		all := known.sharers[port.guid]
		if len(all) == 0 {
			continue
		}
		f := port.finding(n.Name, known.ids)
		f.Kind, f.Other, f.Since = Duplicate, all[0].Name, time.Time{} // Not since the port's state.
		if all[0] == n {
			f.Other = all[1].Name
		}
		out = append(out, f)
	}
	if n.badPath || n.class.dissent != 0 || n.alien {
		f := Finding{Kind: BadPath, Node: n.Name}
		if n.alien {
			f.Other = n.nvlink
		}
		if dissent := n.class.dissent; dissent != 0 { // The group in which the other members report another one above.
			f.Other = n.class.chain[bits.TrailingZeros32(dissent)].id
		}
		out = append(out, f)
	}
	out = append(out, n.Report.degraded(n.Name)...)
	if len(out) > cabling {
		sortFindings(out)
	}
	return out
}

// reasons returns why a node is not Ready, and what the tree cannot know of it.
func (n *node) reasons(findings []Finding, now time.Time) []Reason {
	var out []Reason
	if !n.Ready {
		out = append(out, Reason{Kind: ReasonNodeNotReady, Since: wellknown.Moment(n.Since)})
	}
	if n.beat.Kind != "" {
		out = append(out, n.beat)
	}
	for _, kind := range []Fault{Dead, Missing, Miscabled, Duplicate, BadPath, Unseen} {
		r := Reason{Kind: string(kind)}
		for i := range findings {
			if f := &findings[i]; f.Kind == kind && !f.waits(now) {
				// Since the first, if that is known of all: the zero time, for unknown, is before all others.
				if r.Count++; r.Count == 1 || f.Since.Before(r.Since) {
					r.Since = f.Since
				}
			}
		}
		if r.Count > 0 && (kind != Unseen || n.group == nil) { // Why it is in no leaf group.
			out = append(out, r)
		}
	}
	for _, s := range n.Report.Rest.Stale {
		out = append(out, Reason{Kind: ReasonSource, Since: wellknown.Moment(s.Since.Time)})
	}
	return out
}
