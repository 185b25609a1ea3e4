package quota

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// MaxExplanation bounds the text of [Explain], in bytes: an Event's note has
// 1,024.
const MaxExplanation = 900

// Explain reports why [Place] finds no GPUs for a request, for the owner of the
// waiting pod: what the pod requests, how many GPUs can give it, and what the
// others lack. The text is empty if Place finds the GPUs.
func Explain(gpus []GPU, r *Request) string {
	if len(gpus) == 0 {
		return "the node shares no GPU"
	}
	able, lacks := assess(gpus[:min(len(gpus), MaxGPUs)], r)
	if able >= r.GPUs {
		return ""
	}
	var text strings.Builder
	switch {
	case r.GPUs > len(gpus):
		fmt.Fprintf(&text, "%d GPUs are requested and the node shares %d", r.GPUs, len(gpus))
	case r.GPUs == 1:
		fmt.Fprintf(&text, "none of %d GPUs can give %s", len(gpus), r.each())
	default:
		fmt.Fprintf(&text, "%d GPUs are requested and %d of %d can give %s", r.GPUs, able, len(gpus), r.each())
	}
	if unknown := r.unknownUUIDs(gpus); len(unknown) > 0 {
		fmt.Fprintf(&text, ". The node does not share %s", strings.Join(unknown, ", "))
	}
	for i, l := range lacks {
		line := ". " + l.String()
		if text.Len()+len(line) > MaxExplanation {
			fmt.Fprintf(&text, ". %d more GPUs lack something else", count(lacks[i:]))
			break
		}
		text.WriteString(line)
	}
	return text.String()
}

// shortfall is what some GPUs lack.
type shortfall struct {
	gpus []int
	text string
}

// assess counts the GPUs that can take a request, and groups the others by what
// they lack.
func assess(gpus []GPU, r *Request) (able int, lacks []shortfall) {
	for i := range gpus {
		reason := gpus[i].Reject(r)
		if reason.None() {
			able++
			continue
		}
		detail := reason.detail()
		at := slices.IndexFunc(lacks, func(l shortfall) bool { return l.text == detail })
		if at < 0 {
			at, lacks = len(lacks), append(lacks, shortfall{text: detail})
		}
		lacks[at].gpus = append(lacks[at].gpus, gpus[i].Index)
	}
	return able, lacks
}

func count(lacks []shortfall) int {
	n := 0
	for _, l := range lacks {
		n += len(l.gpus)
	}
	return n
}

// String is as [Reason.String], with the indices of all GPUs: GPUs 0-3, 6: ….
func (l shortfall) String() string {
	gpus := slices.Sorted(slices.Values(l.gpus))
	var text strings.Builder
	for i := 0; i < len(gpus); {
		end := i + 1
		for end < len(gpus) && gpus[end] <= gpus[end-1]+1 {
			end++
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(strconv.Itoa(gpus[i]))
		if end-i > 1 {
			text.WriteString("-" + strconv.Itoa(gpus[end-1]))
		}
		i = end
	}
	noun := "GPU "
	if len(gpus) > 1 {
		noun = "GPUs "
	}
	return noun + text.String() + ": " + l.text
}

// unknownUUIDs are UUIDs that the pod requests and the node does not share. The
// list is clipped.
func (r *Request) unknownUUIDs(gpus []GPU) []string {
	const most = 3
	left := len(r.Use)
	for i := range gpus {
		if names(r.Use, gpus[i].UUID) {
			left--
		}
	}
	var unknown []string
	for _, uuid := range r.Use {
		if len(unknown) == min(left, most) {
			break
		}
		if !slices.ContainsFunc(gpus, func(c GPU) bool { return c.UUID == uuid }) {
			unknown = append(unknown, wellknown.Clip(uuid))
		}
	}
	if more := left - most; more > 0 {
		unknown = append(unknown, fmt.Sprintf("%d more", more))
	}
	return unknown
}

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
