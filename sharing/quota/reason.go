package quota

import (
	"fmt"
	"strconv"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Cause is the kind of a [Reason].
type Cause uint8

// The causes, in the order in which they are looked for.
const (
	// None is no reason: the GPU takes the request.
	None Cause = iota
	// NotSelected and Avoided follow from the pod's device selector.
	NotSelected
	Avoided
	// NotHealthy is a GPU that no new pod gets.
	NotHealthy
	// TooSmall is a GPU that could not take the request if it were idle.
	TooSmall
	// Exclusive is a GPU that one consumer has exclusively.
	Exclusive
	// NotIdle is a GPU with consumers, for an exclusive request.
	NotIdle
	// NoSlot is a GPU with as many consumers as it may have.
	NoSlot
	// OtherPolicy is a GPU with consumers of another QoS policy.
	OtherPolicy
	NoCompute
	NoMemory
)

// Reason is why a GPU rejects a request.
type Reason struct {
	Cause Cause
	// Index is the GPU's index.
	Index int
	// Left of Of is less than Need: percent with NoCompute, MiB with NoMemory.
	// TooSmall has Of and Need in MiB, NoSlot slots in Of, NotIdle consumers.
	Left, Of, Need int64
	// Detail is the unhealthy reason of the GPU, or the policy of its consumers;
	// Policy is then the request's.
	Detail string
	Policy Policy
}

// None reports whether the GPU takes the request.
func (r Reason) None() bool { return r.Cause == None }

// String is the reason in words: GPU 3: 2 GiB of 80 left; needs 4.
func (r Reason) String() string {
	if r.None() {
		return ""
	}
	return "GPU " + strconv.Itoa(r.Index) + ": " + r.detail()
}

// detail is the reason without the GPU.
func (r Reason) detail() string {
	switch r.Cause {
	case NotSelected:
		return "the pod does not select it"
	case Avoided:
		return "the pod avoids it"
	case NotHealthy:
		return wellknown.Clip(r.Detail)
	case TooSmall:
		return fmt.Sprintf("%s GiB in all; needs %s", gib(r.Of, nearest), gib(r.Need, up))
	case Exclusive:
		return "a consumer has it exclusively"
	case NotIdle:
		if r.Of == 1 {
			return "1 consumer; needs it idle"
		}
		return fmt.Sprintf("%d consumers; needs it idle", r.Of)
	case NoSlot:
		return fmt.Sprintf("all %d slots are taken", r.Of)
	case OtherPolicy:
		return "its consumers are " + wellknown.Clip(r.Detail) + ", not " + string(r.Policy)
	case NoCompute:
		return fmt.Sprintf("%d %% of 100 left; needs %d", r.Left, r.Need)
	case NoMemory:
		return fmt.Sprintf("%s GiB of %s left; needs %s", gib(r.Left, down), gib(r.Of, nearest), gib(r.Need, up))
	default:
		return ""
	}
}

// What gib adds, in MiB, to round to a tenth of a GiB.
const (
	down    = 0
	nearest = 51
	up      = 102
)

// gib writes MiB as GiB. What is left rounds down and what is needed up, so
// that the one always reads less than the other.
func gib(mib int64, round int64) string {
	tenths := (mib*10 + round*10) / 1024
	if tenths%10 == 0 {
		return strconv.FormatInt(tenths/10, 10)
	}
	return fmt.Sprintf("%d.%d", tenths/10, tenths%10)
}
