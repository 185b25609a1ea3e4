package snapshot

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
)

// Gangs is the answer of GET /v1/gangs. Nothing in it depends on the replica or
// on when it is asked, but for StaleSince.
type Gangs struct {
	// StaleSince is as in Topology.
	StaleSince time.Time `json:"staleSince,omitzero"`
	// Gangs are ordered by namespace and name.
	Gangs []Gang `json:"gangs"`
}

// Gang is pods that run together or not at all.
type Gang struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// API names the API that makes the pods a gang: a scheduler, a queue, or the controller of a
	// job. Gangs of two APIs may have the same name.
	API   gang.API   `json:"api"`
	State gang.Phase `json:"state"`
	// Reason explains why the gang does not run; it is the scheduler's message while it rejects the
	// gang.
	Reason string `json:"reason,omitempty"`
	// Since is the start of the state, RejectedSince the time of the first rejection by the
	// scheduler; absent if unknown.
	Since         time.Time `json:"since,omitzero"`
	RejectedSince time.Time `json:"rejectedSince,omitzero"`
	// MinMember is the number of members that must run for any to run, by the pods; 0 if the pods
	// do not state it.
	MinMember int `json:"minMember"`
	// Members are the pods that exist; those Bound have a node and have not
	// ended, Running is how many of them run.
	Members int `json:"members"`
	Bound   int `json:"bound"`
	Running int `json:"running"`
	// GPUs is the number of GPUs that the members that have not ended request.
	GPUs int `json:"gpus"`
	// Group is the lowest group that holds all the nodes; absent if none does.
	Group *GroupName `json:"group,omitempty"`
	// Nodes lists the nodes of bound members, each once, in the order of ranks.
	Nodes []string `json:"nodes"`
}

// GroupName is a group of the tree.
type GroupName struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// SelectGangs returns the answer of GET /v1/gangs: the gangs of a namespace in a state; "" selects any.
func (s *Snapshot) SelectGangs(namespace string, state gang.Phase) Gangs {
	list := slices.DeleteFunc(s.GangList(), func(g Gang) bool {
		return namespace != "" && g.Namespace != namespace || state != "" && g.State != state
	})
	return Gangs{StaleSince: s.StaleSince, Gangs: list}
}

// GangList returns all gangs.
func (s *Snapshot) GangList() []Gang {
	out := []Gang{}
	at, domains := s.places(), s.domains()
	for _, g := range s.Gangs {
		if !gang.Together(g.Members) {
			continue
		}
		one := s.gang(g.Members, at)
		if len(domains) > 0 && len(one.Nodes) > 0 {
			domain := domains[one.Nodes[0]]
			elsewhere := func(name string) bool { return domains[name] != domain }
			if domain != nil && !slices.ContainsFunc(one.Nodes, elsewhere) {
				one.Group = &GroupName{Name: domain.Name, Kind: domain.Kind}
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Gang) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(a.API, b.API))
	})
	return out
}

// gang sums up the members of a gang, at least one.
func (s *Snapshot) gang(shared []*gang.Member, at map[string][]*fabric.Element) Gang {
	members := gang.Current(shared)
	gang.OrderMembers(members)
	out := Gang{API: members[0].API, Nodes: []string{}}
	out.Namespace, out.Name, _ = strings.Cut(members[0].Gang, "/")
	seen := make(map[string]bool, len(members))
	for _, m := range members {
		// The scheduler rejects members that differ in it.
		out.MinMember = cmp.Or(out.MinMember, int(m.MinMember))
		if m.Ended() {
			continue
		}
		out.GPUs += int(m.GPUs)
		if m.Node != "" && !seen[m.Node] {
			seen[m.Node] = true
			out.Nodes = append(out.Nodes, m.Node)
		}
	}
	state := gang.StateOf(members, out.MinMember, s.lost)
	out.State, out.Reason = state.Phase, state.Reason
	out.Since, out.RejectedSince = wellknown.Moment(state.Since), wellknown.Moment(state.RejectedSince)
	out.Members, out.Bound, out.Running = state.Pods, state.Bound, state.Running
	out.Group = lowest(out.Nodes, at)
	return out
}

// lost reports whether a node is not ready, and since when.
func (s *Snapshot) lost(name string) (time.Time, bool) {
	n := s.Nodes[name]
	if n == nil || n.Node == nil {
		return time.Time{}, true
	}
	return n.Node.Since, !n.Node.Ready
}

// places returns the groups, top first, that hold each node with a member.
func (s *Snapshot) places() map[string][]*fabric.Element {
	at := map[string][]*fabric.Element{}
	for _, g := range s.Gangs {
		for _, m := range g.Members {
			if m.Node != "" && !m.Ended() {
				at[m.Node] = nil
			}
		}
	}
	if len(at) == 0 {
		return at
	}
	// Neighbors share their groups.
	var last []*fabric.Element
	for holders, e := range s.Tree.All() {
		if e.Kind != v1alpha1.KindNode || len(holders) == 0 {
			continue
		}
		if _, wanted := at[e.Name]; !wanted {
			continue
		}
		if len(last) == 0 || last[len(last)-1] != holders[len(holders)-1] {
			last = slices.Clone(holders)
		}
		at[e.Name] = last
	}
	return at
}

// domains returns the NVLink domains that cross the tree's groups, by node.
func (s *Snapshot) domains() map[string]*fabric.Element {
	out := map[string]*fabric.Element{}
	for _, domain := range s.Tree.Crossing {
		for _, n := range domain.Child {
			out[n.Name] = domain
		}
	}
	return out
}

// lowest returns the lowest group that holds all the nodes, or nil.
func lowest(nodes []string, at map[string][]*fabric.Element) *GroupName {
	if len(nodes) == 0 {
		return nil
	}
	common := at[nodes[0]]
	for _, name := range nodes[1:] {
		way := at[name]
		n := 0
		for n < len(common) && n < len(way) && common[n] == way[n] {
			n++
		}
		common = common[:n]
	}
	if len(common) == 0 {
		return nil
	}
	group := common[len(common)-1]
	return &GroupName{Name: group.Name, Kind: group.Kind}
}
