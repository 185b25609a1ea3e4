package fabric

import (
	"cmp"
	"slices"
	"strings"
	"time"
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
