package v1alpha1

import (
	"encoding/json"
	"iter"
)

// KindNode is the kind of the tree's leaves.
const KindNode = "node"

// CrossingHeader is a header of GET /node_group if NVLink domains cross groups of the tree. It
// holds the ETag of ?axis=nvlink, which has these domains.
const CrossingHeader = "Heddle-Crossing"

// The states of a node or a group.
const (
	StatusReady    = "Ready"
	StatusNotReady = "NotReady"
	StatusDegraded = "Degraded"
)

// Group is an element of the tree that GET /node_group answers: a group of
// nodes or, with KindNode and no children, a node.
//
// +kubebuilder:object:generate=false
type Group struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Child are the groups or nodes one level below, sorted by name.
	Child []Group `json:"child"`
	// Status is Ready, NotReady or Degraded.
	Status string `json:"status"`
}

// MarshalJSON writes the fields in the order of Group, and no child for a
// node.
func (g Group) MarshalJSON() ([]byte, error) {
	if g.Kind == KindNode {
		return json.Marshal(struct {
			Name   string `json:"name"`
			Kind   string `json:"kind"`
			Status string `json:"status"`
		}{g.Name, g.Kind, g.Status})
	}
	if g.Child == nil {
		g.Child = []Group{}
	}
	type plain Group
	return json.Marshal(plain(g))
}

// All returns groups and all that is in them, each before what is in it.
func All(groups []Group) iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for i := range groups {
			if !yield(&groups[i]) {
				return
			}
			for g := range All(groups[i].Child) {
				if !yield(g) {
					return
				}
			}
		}
	}
}
