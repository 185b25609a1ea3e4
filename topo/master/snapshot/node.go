package snapshot

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// GPUs counts accelerators.
type GPUs struct {
	// Free is the number that pods could get now: GPUs that the kubelet offers on Ready and
	// schedulable nodes, minus GPUs that pods hold. Absent without GPUs.
	Free *int `json:"free,omitempty"`
	// Offered is the number of GPUs that the kubelets offer, on nodes in any state. It is less than
	// Total where no device plugin runs, or where it withholds GPUs that are unhealthy or allocated
	// in another way.
	Offered int `json:"offered"`
	// Shared is the number of GPUs that the device plugin hands out in parts; Offered and Free lack them.
	Shared int `json:"shared,omitempty"`
	// Used is the number of GPUs that pods hold, and of shared ones with a consumer.
	Used int `json:"used"`
	// Total is the number of GPUs, offered or not.
	Total int `json:"total"`
}

func (g *GPUs) add(o GPUs) {
	g.Offered += o.Offered
	g.Shared += o.Shared
	g.Used += o.Used
	g.Total += o.Total
	if o.Free != nil {
		if g.Free == nil {
			g.Free = new(int)
		}
		*g.Free += *o.Free
	}
}

func (s *Snapshot) gpus(n *informers.NodeState) GPUs {
	var g GPUs
	if r := n.Believed(); r != nil {
		for _, a := range r.Rest.Accelerators {
			g.Total += int(a.Count)
		}
	}
	if n.Node == nil {
		return g
	}
	g.Offered, g.Shared = int(n.Node.GPUs), int(n.Node.Shared)
	g.Total = max(g.Total, g.Offered+g.Shared)
	g.Used = min(int(n.Used+n.Node.SharedUsed), g.Total) // Pods of a lost GPU still count it.
	if g.Total > 0 {
		g.Free = new(int)
		if n.Node.Ready && !n.Node.Cordoned {
			*g.Free = max(g.Offered-int(n.Used), 0)
		}
	}
	return g
}

// Node is the answer of GET /v1/nodes/{name}.
type Node struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	// Groups hold the node, top first; last an NVLink domain that crosses them.
	Groups   []Group          `json:"groups"`
	Reasons  []fabric.Reason  `json:"reasons,omitempty"`
	Findings []fabric.Finding `json:"findings,omitempty"`

	Ready      bool      `json:"ready"`
	ReadySince time.Time `json:"readySince,omitzero"`
	Cordoned   bool      `json:"cordoned,omitempty"`
	Product    string    `json:"product,omitempty"`
	GPUs       GPUs      `json:"gpus"`

	// Ignored explains why the node's report is ignored; then the following fields are empty.
	Ignored      string             `json:"ignored,omitempty"`
	NVLinkDomain string             `json:"nvlinkDomain,omitempty"`
	Rails        []v1alpha1.Rail    `json:"rails,omitempty"`
	Path         []string           `json:"path,omitempty"`
	PathSource   v1alpha1.Source    `json:"pathSource,omitempty"`
	Uplinks      int                `json:"uplinks,omitempty"`
	Skipped      []v1alpha1.Skipped `json:"skipped,omitempty"`
	// StaleSources are the sources that are silent, and since when.
	StaleSources []v1alpha1.StaleSource `json:"staleSources,omitempty"`
	Walk         []string               `json:"walk,omitempty"`
	Heartbeat    time.Time              `json:"heartbeat,omitzero"`
	// HeartbeatAge is in seconds, by this replica's clock.
	HeartbeatAge float64 `json:"heartbeatAgeSeconds,omitempty"`
	// Tests has the last result of heddle fabric test for each port.
	Tests []v1alpha1.LinkTest `json:"tests,omitempty"`
	// Suspect has the gangs that failed on the node, if they are several.
	Suspect *suspect.Place `json:"suspect,omitempty"`
	// Changes are the Events about its cables, the newest first.
	Changes []informers.Change `json:"changes,omitempty"`
}

// Group is a group that holds a node.
type Group struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Status string `json:"status"`
}

// Node returns the answer about one node, or false.
func (s *Snapshot) Node(name string, now time.Time) (*Node, bool) {
	known := s.Nodes[name]
	if known == nil || known.Node == nil {
		return nil, false
	}
	n := &Node{
		Name: name, Groups: []Group{}, Ready: known.Node.Ready, Cordoned: known.Node.Cordoned,
		GPUs: s.gpus(known), Ignored: known.Ignored(), ReadySince: wellknown.Moment(known.Node.Since),
	}
	for holders, e := range s.Tree.All() {
		if e.Kind != v1alpha1.KindNode || e.Name != name {
			continue
		}
		n.Status, n.Reasons, n.Findings = e.Status, e.Reasons, e.Findings
		for _, h := range holders {
			n.Groups = append(n.Groups, Group{h.Name, h.Kind, h.Status})
		}
		for _, domain := range s.Tree.Crossing {
			if slices.Contains(domain.Child, e) {
				n.Groups = append(n.Groups, Group{domain.Name, domain.Kind, domain.Status})
			}
		}
		break
	}
	if r := known.Believed(); r != nil {
		spec := r.Spec()
		n.Product, n.NVLinkDomain, n.Rails = r.Product(), spec.NVLinkDomain, spec.Rails
		n.Path, n.PathSource, n.Uplinks, n.Skipped = spec.Path, spec.PathSource, len(spec.Uplinks), spec.Skipped
		n.Walk, n.StaleSources, n.Tests = r.Cables.Walk, spec.Stale, r.Tests
		if at := r.Heartbeat(); !at.IsZero() {
			n.Heartbeat, n.HeartbeatAge = wellknown.Moment(at), now.Sub(at).Round(time.Second).Seconds()
		}
	}
	return n, true
}
