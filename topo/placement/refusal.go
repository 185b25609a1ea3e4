package placement

import (
	"cmp"
	"fmt"
	"strings"
)

// Reason is what kind of answer a refusal is.
type Reason int

const (
	// ReasonInvalid: the gang contradicts itself or the map. It waits for
	// somebody to change it, or for another map.
	ReasonInvalid Reason = iota + 1
	// ReasonNoRoom: it does not fit now.
	ReasonNoRoom
	// ReasonMembers: what is left of it does not fit beside its members that
	// have a node.
	ReasonMembers
)

// Refusal is why a gang has no plan, as an error in people's words.
type Refusal struct { //nolint:errname // It is an answer; Error tells it to people.
	Reason Reason
	// Want is how many pods must have a node, and Fit how many would at best,
	// placed members included.
	Want, Fit int
	// Placed is how many have one already.
	Placed int
	// Group and Kind are where those would be. Group is empty for all nodes
	// together.
	Group, Kind string
	// Short is how many GPUs are missing there; pods, if these ask for none.
	Short int
	// OfPods tells that Short counts pods.
	OfPods bool
	// Slice is the gang's, in GPUs.
	Slice int
	// NoNode tells that no node at all has room for a pod of Task.
	NoNode bool
	Task   string
	// Outside is how many nodes have room and are in no group that would do,
	// and Level what these lack: the required kind.
	Outside int
	Level   string
	// Avoided is how many nodes the gang avoids.
	Avoided int
	// detail is the whole text of ReasonInvalid.
	detail string
}

func invalid(format string, args ...any) *Refusal {
	return &Refusal{Reason: ReasonInvalid, detail: fmt.Sprintf(format, args...)}
}

// Error is the refusal in a sentence: 3 of 5 fit, group leaf-07 is 4 GPUs
// short.
func (r *Refusal) Error() string {
	if r.Reason == ReasonInvalid {
		return r.detail
	}
	var b strings.Builder
	if r.Fit == 0 {
		fmt.Fprintf(&b, "none of %d fits", r.Want)
	} else {
		fmt.Fprintf(&b, "%d of %d fit", r.Fit, r.Want)
	}
	if r.Slice > 0 {
		fmt.Fprintf(&b, " in slices of %s", count(r.Slice, "GPU"))
	}
	unit := "GPU"
	if r.OfPods {
		unit = "pod"
	}
	if r.Placed > 0 {
		fmt.Fprintf(&b, " (%d placed already)", r.Placed)
	}
	switch {
	case r.NoNode:
		fmt.Fprintf(&b, ", %s has room for a %s", r.nowhere(), cmp.Or(r.Task, "pod"))
	case r.Fit > 0 && r.Short > 0:
		fmt.Fprintf(&b, ", %s %s short", r.where(), count(r.Short, unit))
	}
	if r.Outside > 0 {
		is := "are"
		if r.Outside == 1 {
			is = "is"
		}
		fmt.Fprintf(&b, "; %s with room %s in no %s", count(r.Outside, "node"), is, r.Level)
	}
	if r.Avoided > 0 {
		fmt.Fprintf(&b, "; %s avoided", count(r.Avoided, "node"))
	}
	return b.String()
}

func (r *Refusal) where() string {
	switch {
	case r.Group == "":
		return "all nodes together are"
	case r.Kind == kindNode:
		return "node " + r.Group + " is"
	}
	return "group " + r.Group + " is"
}

func (r *Refusal) nowhere() string {
	if r.Level == "" || r.Level == kindNode {
		return "no node"
	}
	return "no node in a " + r.Level
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// kindsOf names the kinds that a map has.
func kindsOf(t *Tree) string {
	if len(t.kinds) == 0 {
		return "no groups at all"
	}
	return strings.Join(t.Kinds(), ", ")
}
