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
	// None is no reason: the card takes the request.
	None Cause = iota
	// NotUsed and Avoided are what the pod says of the card.
	NotSelected
	Avoided
	// Unfit is a card that nobody new gets.
	NotHealthy
	// TooSmall is a card that could not take the request if it were idle.
	TooSmall
	// Alone is a card that one tenant has to itself.
	Exclusive
	// NotIdle is a card with tenants, for a request that wants it to itself.
	NotIdle
	// NoSlot is a card with as many tenants as it may have.
	NoSlot
	// OtherPolicy is a card with tenants of another QoS policy.
	OtherPolicy
	NoCompute
	NoMemory
)

// Reason is why a card refuses a request.
type Reason struct {
	Cause Cause
	// Card is its index.
	Index int
	// Left of Of is less than Need: percent with NoCompute, MiB with NoMemory.
	// TooSmall has Of and Need in MiB, NoSlot slots in Of, NotIdle tenants.
	Left, Of, Need int64
	// Word is what is against an unfit card, or the policy of its tenants;
	// then Policy is the request's.
	Detail string
	Policy Policy
}

// None tells that the card takes the request.
func (r Reason) None() bool { return r.Cause == None }

// String is the reason in words: card 3: 2 GiB of 80 left; needs 4.
func (r Reason) String() string {
	if r.None() {
		return ""
	}
	return "card " + strconv.Itoa(r.Index) + ": " + r.detail()
}

// words is the reason without the card.
func (r Reason) detail() string {
	switch r.Cause {
	case NotSelected:
		return "the pod does not ask for it"
	case Avoided:
		return "the pod avoids it"
	case NotHealthy:
		return wellknown.Clip(r.Detail)
	case TooSmall:
		return fmt.Sprintf("%s GiB in all; needs %s", gib(r.Of, nearest), gib(r.Need, up))
	case Exclusive:
		return "a tenant has it alone"
	case NotIdle:
		if r.Of == 1 {
			return "1 tenant; needs it idle"
		}
		return fmt.Sprintf("%d tenants; needs it idle", r.Of)
	case NoSlot:
		return fmt.Sprintf("all %d slots are taken", r.Of)
	case OtherPolicy:
		return "its tenants are " + wellknown.Clip(r.Detail) + ", not " + string(r.Policy)
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
