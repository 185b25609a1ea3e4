// Package snapshot is what topo-master knows at one moment, and how it tells it.
//
// It owns the snapshot of tree, nodes and gangs that all answers are made of, and
// the shapes of GET /v1/topology, /v1/nodes/{name} and /v1/gangs. It is pure: no clock, no
// network, no API server. The tree and the bytes of /node_group are
// topo/fabric's.
package snapshot

import (
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// Snapshot is everything at one moment. It never changes, but for the heartbeats
// of reports.
type Snapshot struct {
	// Generation counts the changes that this replica saw.
	Generation uint64
	// Mapped is the generation of the last change that Document tells: all but
	// those of gangs alone.
	Mapped uint64
	Tree   *fabric.Snapshot
	Levels []fabric.Level
	Nodes  *Table
	// Gangs are nil if pods are not watched.
	Gangs *GangTable
	// CountsPods tells whether Detail.Used is known.
	CountsPods bool
	// Walks says which node's worker walks which leaves; nil if nobody asked.
	Walks map[string][]string
	// StaleSince is when the API server last said anything if that is too long
	// ago; zero while it does.
	StaleSince time.Time

	document     func() (*Document, error)
	gangs        func() []Gang
	gangDocument func() (*Document, error)
}

// New makes a view.
func New(v Snapshot) *Snapshot {
	out := &v
	out.document = sync.OnceValues(out.encode)
	out.gangs = sync.OnceValue(out.listGangs)
	out.gangDocument = sync.OnceValues(func() (*Document, error) { return pack(out.writeGangs) })
	return out
}

// Document is GET /v1/topology, made at the first call.
func (v *Snapshot) Document() (*Document, error) { return v.document() }

// GPUs is how many accelerators there are.
type GPUs struct {
	// Free is how many a pod could get now: those that the kubelet offers on
	// nodes that are Ready and not cordoned, less those that pods hold.
	// Absent if pods are not counted.
	Free *int `json:"free,omitempty"`
	// Offered is how many the kubelets offer of the GPU resource, on nodes in
	// any state. It is less than Total where a device plugin is away, or
	// withholds GPUs that are not fit or handed out in another way.
	Offered int `json:"offered"`
	// Total is how many there are, offered or not.
	Total int `json:"total"`
}

func (g *GPUs) add(o GPUs) {
	g.Offered += o.Offered
	g.Total += o.Total
	if o.Free != nil {
		if g.Free == nil {
			g.Free = new(int)
		}
		*g.Free += *o.Free
	}
}

func (v *Snapshot) gpus(d Detail) GPUs {
	var g GPUs
	if r := d.Believed(); r != nil {
		g.Total = int(r.Accelerators())
	}
	if d.Node == nil {
		return g
	}
	g.Offered = int(d.Node.GPUs)
	g.Total = max(g.Total, g.Offered)
	if v.CountsPods && g.Total > 0 {
		free := 0
		if d.Node.Ready && !d.Node.Cordoned {
			free = max(g.Offered-int(d.Used), 0)
		}
		g.Free = &free
	}
	return g
}

// Reason is why a node is not Ready.
type Reason struct {
	// Kind is one of topo/fabric's reasons and faults.
	Kind string `json:"kind"`
	// Count is how many faults of that kind there are.
	Count int `json:"count,omitempty"`
	// Since is when it began, if that is known.
	Since *time.Time `json:"since,omitempty"`
}

func reasons(in []fabric.Reason) []Reason {
	var out []Reason
	for _, r := range in {
		o := Reason{Kind: r.Kind, Count: r.Count}
		if !r.Since.IsZero() {
			o.Since = new(r.Since.UTC())
		}
		out = append(out, o)
	}
	return out
}

// Node is the answer of GET /v1/nodes/{name}.
type Node struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	// Groups hold the node, top first.
	Groups   []Group          `json:"groups"`
	Reasons  []Reason         `json:"reasons,omitempty"`
	Findings []fabric.Finding `json:"findings,omitempty"`

	Ready      bool       `json:"ready"`
	ReadySince *time.Time `json:"readySince,omitempty"`
	Cordoned   bool       `json:"cordoned,omitempty"`
	Product    string     `json:"product,omitempty"`
	GPUs       GPUs       `json:"gpus"`

	// Ignored says why the node's report is not believed; what follows is
	// empty then.
	Ignored      string             `json:"ignored,omitempty"`
	NVLinkDomain string             `json:"nvlinkDomain,omitempty"`
	Rails        []v1alpha1.Rail    `json:"rails,omitempty"`
	Path         []string           `json:"path,omitempty"`
	PathSource   v1alpha1.Source    `json:"pathSource,omitempty"`
	Uplinks      int                `json:"uplinks,omitempty"`
	Skipped      []v1alpha1.Skipped `json:"skipped,omitempty"`
	Walk         []string           `json:"walk,omitempty"`
	Heartbeat    *time.Time         `json:"heartbeat,omitempty"`
	// HeartbeatAge is in seconds, by this replica's clock.
	HeartbeatAge float64 `json:"heartbeatAgeSeconds,omitempty"`
}

// Group is a group that holds a node.
type Group struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Status string `json:"status"`
}

// Node is all about one node at a time; false if there is none.
func (v *Snapshot) Node(name string, now time.Time) (*Node, bool) {
	d, ok := v.Nodes.Of(name)
	if !ok || d.Node == nil {
		return nil, false
	}
	n := &Node{
		Name: name, Groups: []Group{}, Ready: d.Node.Ready, Cordoned: d.Node.Cordoned,
		GPUs: v.gpus(d), Ignored: d.Ignored(),
	}
	if !d.Node.Since.IsZero() {
		n.ReadySince = new(d.Node.Since.UTC())
	}
	for holders, e := range v.Tree.All() {
		if e.Kind != v1alpha1.KindNode || e.Name != name {
			continue
		}
		n.Status, n.Reasons, n.Findings = e.Status, reasons(e.Reasons), e.Findings
		for _, h := range holders {
			n.Groups = append(n.Groups, Group{h.Name, h.Kind, h.Status})
		}
		break
	}
	if r := d.Believed(); r != nil {
		s := r.Spec()
		n.Product, n.NVLinkDomain, n.Rails = r.Product(), s.NVLinkDomain, s.Rails
		n.Path, n.PathSource, n.Uplinks, n.Skipped = s.Path, s.PathSource, len(s.Uplinks), s.Skipped
		n.Walk = r.Walk
		if at := r.Heartbeat(); !at.IsZero() {
			n.Heartbeat, n.HeartbeatAge = &at, now.Sub(at).Round(time.Second).Seconds()
		}
	}
	return n, true
}

// Next makes the view that follows v. With the same generation, or the same map,
// it tells the same, so that what was encoded stays.
func (v *Snapshot) Next(n Snapshot) *Snapshot {
	out := New(n)
	if v != nil && v.Mapped == n.Mapped {
		out.document = v.document
	}
	if v != nil && v.Generation == n.Generation {
		out.gangs, out.gangDocument = v.gangs, v.gangDocument
	}
	return out
}
