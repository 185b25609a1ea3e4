package hami

import "fmt"

// Reason says why an annotation of HAMi's is not followed.
type Reason string

// The reasons.
const (
	// Absent: HAMi chose nothing for this container. It is no refusal of
	// HAMi's choice; who else decides is the node's configuration.
	Absent Reason = "Absent"
	// Forged: the pod has another scheduler.
	Forged Reason = "Forged"
	// Malformed: it is not what HAMi writes, or a part of it.
	Malformed Reason = "Malformed"
	// OtherNode: the choice is for another node.
	OtherNode Reason = "OtherNode"
	// Unbound: HAMi did not bind the pod.
	Unbound Reason = "Unbound"
	// Stale: the choice is of a later try to schedule than the binding.
	Stale Reason = "Stale"
	// UnknownCard: a card that is not shared on this node.
	UnknownCard Reason = "UnknownCard"
	// WrongCount: more or fewer cards than the container asks for.
	WrongCount Reason = "WrongCount"
	// Exceeds: more of a card than the container asks for, or than it has.
	Exceeds Reason = "Exceeds"
)

// RefusedError is why an annotation of HAMi's is not followed. Its text is for the
// pod's owner.
type RejectedError struct {
	Reason  Reason
	Message string
}

// Error is the message, which names the annotation.
func (r *RejectedError) Error() string { return r.Message }

func reject(why Reason, format string, args ...any) *RejectedError {
	return &RejectedError{Reason: why, Message: fmt.Sprintf(format, args...)}
}
