package hami

import "fmt"

// Reason is the kind of a [RejectedError].
type Reason string

// The reasons.
const (
	// Absent: HAMi chose nothing for this container. It does not reject
	// HAMi's choice; the node's configuration decides what chooses instead.
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
	// UnknownGPU: a GPU that is not shared on this node.
	UnknownGPU Reason = "UnknownCard"
	// WrongCount: more or fewer GPUs than the container requests.
	WrongCount Reason = "WrongCount"
	// Exceeds: more of a GPU than the container requests, or than it has.
	Exceeds Reason = "Exceeds"
)

// RejectedError is the reason why an annotation of HAMi's is not followed. Its
// text is for the pod's owner.
type RejectedError struct {
	Reason  Reason
	Message string
}

// Error is the message, which names the annotation.
func (r *RejectedError) Error() string { return r.Message }

func reject(reason Reason, format string, args ...any) *RejectedError {
	return &RejectedError{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
