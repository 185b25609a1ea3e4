package fabric

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Fault is the sort of a finding.
type Fault string

// The faults. All but Unseen make a node Degraded.
const (
	// Miscabled is a port on another leaf than its group's for that rail.
	Miscabled Fault = "miscabled"
	// Dead is a port with a link that is not active.
	Dead Fault = "dead"
	// Missing is a rail that the group's like nodes have and this one lacks.
	Missing Fault = "missing"
	// Duplicate is an HCA with a GUID that another node reports too.
	Duplicate Fault = "duplicate"
	// BadPath is a path that contradicts the levels' order or what most
	// other members of a group report.
	BadPath Fault = "path"
	// Unseen is an active port without a known switch.
	Unseen Fault = "unseen"
)

// Switch is the end of a cable.
type Switch struct {
	// ID is canonical: GUIDs and MAC addresses are lower-case hex digits.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Port is as the report's source spells it.
	Port string `json:"port,omitempty"`
}

// Finding is one thing that is not as it should be.
type Finding struct {
	Kind Fault  `json:"kind"`
	Node string `json:"node"`
	// Group is the leaf group that expects this, by its key: the ID
	// of its anchor leaf.
	Group string `json:"group,omitempty"`
	// HCA and ID are the RDMA device's name and identity, Port its port
	// number; empty where no device is there.
	HCA   string `json:"hca,omitempty"`
	ID    string `json:"id,omitempty"`
	Port  int32  `json:"port,omitempty"`
	Rail  int32  `json:"rail"`
	Plane int32  `json:"plane,omitempty"`
	// Expected is empty if the group does not know better; Found is empty if
	// nothing was found.
	Expected Switch `json:"expected,omitzero"`
	Found    Switch `json:"found,omitzero"`
	// Other is the other node of a Duplicate, or the group of a BadPath.
	Other string `json:"other,omitempty"`
	// Since is when the port became what it is, by the node's clock: when the
	// link went down, or the cable was put where it is wrong. Zero if
	// the report does not contain it, as of what was so when the worker first looked
	// and of what is no port's.
	Since time.Time `json:"since,omitzero"`
}

// compareFindings orders by node, rail, plane, device and kind.
func compareFindings(a, b Finding) int {
	return cmp.Or(
		strings.Compare(a.Node, b.Node), cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Plane, b.Plane),
		strings.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port), strings.Compare(string(a.Kind), string(b.Kind)),
		strings.Compare(a.Other, b.Other),
	)
}

func sortFindings(list []Finding) { slices.SortFunc(list, compareFindings) }

// nodeElement is what the tree shows of a node. It changes nothing: several are
// made at the same time.
func (b *Builder) nodeElement(n *node) *Element {
	e := &Element{Name: n.Name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
	e.Findings = b.findings(n)
	e.Reasons = b.reasons(n, e.Findings)
	switch {
	case !n.Ready:
		e.Status, e.Nodes.NotReady = v1alpha1.StatusNotReady, 1
	case slices.ContainsFunc(e.Reasons, Reason.degrades):
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

// reasons are why a node is not Ready, and what the tree cannot know of it.
func (b *Builder) reasons(n *node, findings []Finding) []Reason {
	var out []Reason
	if !n.Ready {
		out = append(out, Reason{Kind: ReasonNodeNotReady, Since: wellknown.Moment(n.Since)})
	}
	if reason, _ := b.heartbeat(n); reason.Kind != "" {
		out = append(out, reason)
	}
	for _, kind := range []Fault{Dead, Missing, Miscabled, Duplicate, BadPath} {
		if r := reasonOf(kind, findings); r.Count > 0 {
			out = append(out, r)
		}
	}
	for _, s := range n.Report.Stale() {
		out = append(out, Reason{Kind: ReasonSource, Since: wellknown.Moment(s.Since.Time)})
	}
	if n.group == nil { // Why it is in no leaf group.
		if r := reasonOf(Unseen, findings); r.Count > 0 {
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
		return Reason{Kind: ReasonStale, Since: wellknown.Moment(late)}, time.Time{}
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
