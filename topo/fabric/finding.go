package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Fault is the sort of a finding.
type Fault string

// The faults. All but Unseen and Degraded make a node Degraded.
const (
	// Miscabled is a port on another leaf than its group's for that rail.
	Miscabled Fault = "miscabled"
	// Dead is a port with a link that is not active.
	Dead Fault = "dead"
	// Missing is a rail that the group's like nodes have and this one lacks.
	Missing Fault = "missing"
	// Duplicate is an HCA with a GUID that another node reports too.
	Duplicate Fault = "duplicate"
	// BadPath is a path that contradicts the levels' order or what most other members of a group report.
	BadPath Fault = "path"
	// Unseen is an active port without a known switch.
	Unseen Fault = "unseen"
	// Degraded is a link that works worse than its limit, by the node's own readings.
	Degraded Fault = "degraded-link"
)

// Switch is the end of a cable.
type Switch struct {
	// ID is canonical: GUIDs and MAC addresses are lower-case hex digits.
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
	// Port is as the report's source spells it.
	Port string `json:"port,omitempty"`
}

// Finding describes one deviation from the expected cabling.
type Finding struct {
	Kind Fault  `json:"kind"`
	Node string `json:"node"`
	// Group is the leaf group that expects this, by its key: the ID of its anchor leaf.
	Group string `json:"group,omitempty"`
	// HCA and ID are the RDMA device's name and identity, Port its port number; empty where no device is there.
	HCA   string `json:"hca,omitempty"`
	ID    string `json:"id,omitempty"`
	Port  int32  `json:"port,omitempty"`
	Rail  int32  `json:"rail"`
	Plane int32  `json:"plane,omitempty"`
	// Expected is empty if the group does not know better; Found is empty if nothing was found.
	Expected Switch `json:"expected,omitzero"`
	Found    Switch `json:"found,omitzero"`
	// Other is the other node of a Duplicate, or the group of a BadPath.
	Other string `json:"other,omitempty"`
	// Link is the Degraded link of a GPU to others, End switch for a link by the counters of the switch's port. What is
	// its measure, Limit its limit with the limit's source, Value the value read last.
	Link  string `json:"link,omitempty"`
	End   string `json:"end,omitempty"`
	What  string `json:"what,omitempty"`
	Limit string `json:"limit,omitempty"`
	Value string `json:"value,omitempty"`
	// Since is the start of the port's current state, by the node's clock: the time when the link went down or the
	// cable was misplaced. Zero if the report does not contain it, as for states older than the worker and for findings
	// without a port.
	Since time.Time `json:"since,omitzero"`
	// Settles is when a Miscabled port makes its node Degraded, zero for at once.
	Settles time.Time `json:"-"`
}

// waits reports whether a finding is of a rail that changes. A time further ahead comes from a wrong clock.
func (f *Finding) waits(now time.Time) bool {
	return now.Before(f.Settles) && f.Settles.Before(now.Add(settling+maxSkew))
}

// compareFindings orders by node, rail, plane, device and kind.
func compareFindings(a, b Finding) int {
	return cmp.Or(
		strings.Compare(a.Node, b.Node), cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Plane, b.Plane),
		strings.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port), strings.Compare(string(a.Kind), string(b.Kind)),
		strings.Compare(a.Other, b.Other), strings.Compare(a.Link, b.Link), strings.Compare(a.End, b.End),
		strings.Compare(a.What, b.What),
	)
}

func sortFindings(list []Finding) { slices.SortFunc(list, compareFindings) }

// Subject returns the port that a finding is about: "mlx5_3 port 1 (rail 3)"; empty for a finding about no port.
func (f *Finding) Subject() string {
	rail := fmt.Sprintf("rail %d", f.Rail)
	if f.Plane > 0 {
		rail += fmt.Sprintf(" plane %d", f.Plane)
	}
	switch device := cmp.Or(f.HCA, f.ID); {
	case f.Kind == BadPath:
		return ""
	case device == "":
		return rail
	case f.Kind == Degraded && f.HCA == "":
		return v1alpha1.DeviceLink(device, f.Link)
	case f.Port > 0:
		return fmt.Sprintf("%s port %d (%s)", device, f.Port, rail)
	default:
		return fmt.Sprintf("%s (%s)", device, rail)
	}
}

// Sentence returns the finding as text, without its node: the port, its actual and its expected state.
func (f *Finding) Sentence() string {
	expected := ""
	if f.Expected != (Switch{}) {
		expected = ", expected " + f.Expected.text()
	}
	switch f.Kind {
	case Miscabled:
		return f.Subject() + " is on " + f.Found.text() + expected
	case Dead:
		return f.Subject() + " has no active link" + expected
	case Missing:
		return f.Subject() + " has no port" + expected
	case Duplicate:
		return f.Subject() + " has the GUID of an HCA of node " + f.Other
	case Unseen:
		return f.Subject() + " is active, and its switch is not known" + expected
	case Degraded:
		if f.End != "" {
			return f.Subject() + " is degraded at the " + f.End + "'s end: " + f.What + " above the limit, " + f.Limit
		}
		if strings.HasPrefix(f.What, "pcie-") || f.What == "bandwidth" {
			return f.Subject() + " is degraded: " + f.What + " below " + f.Limit
		}
		if f.What == "sxid-fatal" {
			return f.Subject() + " is degraded: fatal error (SXid) " + f.Value
		}
		if f.What == "failure" {
			return f.Subject() + " is degraded: failed, expected " + f.Limit
		}
		return f.Subject() + " is degraded: " + f.What + " above the limit, " + f.Limit
	case BadPath:
		if f.Other != "" {
			return "most other nodes of " + f.Other + " report another group above it"
		}
	}
	return "the reported path contradicts the levels"
}

// text returns the switch by its name, else its ID, and the port if it is known.
func (s Switch) text() string {
	if s.Port == "" {
		return cmp.Or(s.Name, s.ID)
	}
	return cmp.Or(s.Name, s.ID) + " port " + s.Port
}
