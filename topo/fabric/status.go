package fabric

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// moment is the time at which heartbeats are judged.
type moment struct {
	now        time.Time
	staleAfter time.Duration
}

// maxSkew bounds how far ahead a worker's clock may be.
const maxSkew = time.Minute

// heartbeat returns the fault of a node's heartbeat, and when that changes
// without a new one; zero for never.
func (m moment) heartbeat(n *node) (reason Reason, next time.Time) {
	late := n.Heartbeat.Add(m.staleAfter)
	switch {
	case n.Report == nil || n.Heartbeat.IsZero():
		return Reason{}, time.Time{}
	case m.now.After(late):
		return Reason{Kind: ReasonStale, Since: wellknown.Moment(late)}, time.Time{}
	case n.Heartbeat.After(m.now.Add(maxSkew)):
		return Reason{Kind: ReasonClock}, n.Heartbeat.Add(-maxSkew)
	}
	return Reason{}, late.Add(1)
}

// element returns the node as the tree shows it: the last element if nothing changed.
func (p *spot) element(duplicates map[uint64][]*node, ids []string) *Element {
	findings := p.findings(duplicates, ids)
	reasons := p.reasons(findings)
	status := v1alpha1.StatusReady
	switch {
	case !p.Ready:
		status = v1alpha1.StatusNotReady
	case slices.ContainsFunc(reasons, Reason.degrades):
		status = v1alpha1.StatusDegraded
	}
	if e := p.shown; e != nil && e.Status == status && slices.Equal(e.Findings, findings) &&
		slices.Equal(e.Reasons, reasons) {
		return e
	}
	e := &Element{Name: p.Name, Kind: v1alpha1.KindNode, Status: status, Findings: findings, Reasons: reasons}
	switch status {
	case v1alpha1.StatusReady:
		e.Nodes.Ready = 1
	case v1alpha1.StatusDegraded:
		e.Nodes.Degraded = 1
	default:
		e.Nodes.NotReady = 1
	}
	e.encode()
	return e
}

// findings lists all faults of a node.
func (p *spot) findings(duplicates map[uint64][]*node, ids []string) []Finding {
	out := slices.Clip(p.cabling()) // Snapshots share it: appending must not write to it.
	cabling := len(out)
	if len(duplicates) > 0 {
		for i := range p.links.ports {
			port := &p.links.ports[i]
			all := duplicates[port.guid]
			other := slices.IndexFunc(all, func(n *node) bool { return n != p.node })
			if other < 0 {
				continue
			}
			f := port.finding(p.Name, ids)
			f.Kind, f.Other = Duplicate, all[other].Name
			f.Since = time.Time{} // Not by the port's state.
			out = append(out, f)
		}
	}
	if p.badPath || p.dissent != 0 {
		out = append(out, Finding{Kind: BadPath, Node: p.Name, Other: p.contradicted()})
	}
	if len(out) > cabling {
		sortFindings(out)
	}
	return out
}

// contradicted returns the group in which the other members report another one
// above, "" for none.
func (p *spot) contradicted() string {
	for i, d := range p.chain {
		if d != nil && p.dissent&(1<<i) != 0 {
			return d.id
		}
	}
	return ""
}

// reasons returns why a node is not Ready, and what the tree cannot know of it.
func (p *spot) reasons(findings []Finding) []Reason {
	var out []Reason
	if !p.Ready {
		out = append(out, Reason{Kind: ReasonNodeNotReady, Since: wellknown.Moment(p.Since)})
	}
	if p.beat.Kind != "" {
		out = append(out, p.beat)
	}
	if len(findings) == 0 && len(out) == 0 && len(p.Report.Stale()) == 0 {
		return nil
	}
	for _, kind := range []Fault{Dead, Missing, Miscabled, Duplicate, BadPath} {
		if r := reasonOf(kind, findings); r.Count > 0 {
			out = append(out, r)
		}
	}
	for _, s := range p.Report.Stale() {
		out = append(out, Reason{Kind: ReasonSource, Since: wellknown.Moment(s.Since.Time)})
	}
	if p.group == nil { // Why it is in no leaf group.
		if r := reasonOf(Unseen, findings); r.Count > 0 {
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
