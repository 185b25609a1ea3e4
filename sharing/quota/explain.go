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
	shares := func(uuid string) bool {
		return slices.ContainsFunc(gpus, func(c GPU) bool { return c.UUID == uuid })
	}
	if unknown := r.Unknown(shares); len(unknown) > 0 {
		fmt.Fprintf(&text, ". The node does not share %s", strings.Join(unknown, ", "))
	}
	for i, l := range lacks {
		line := ". " + l.String()
		if text.Len()+len(line) > MaxExplanation {
			more := 0
			for _, l := range lacks[i:] {
				more += len(l.gpus)
			}
			fmt.Fprintf(&text, ". %d more GPUs lack something else", more)
			break
		}
		text.WriteString(line)
	}
	return text.String()
}

// shortfall counts the GPUs with the same lack.
type shortfall struct {
	gpus []int
	text string
}

// assess counts the GPUs that can take a request, and groups the others by their lack.
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

// Reason explains why a GPU rejects a request. It is valid while both are unchanged.
type Reason struct {
	cause cause
	gpu   *GPU
	r     *Request
}

type cause uint8

const (
	accepted cause = iota
	excluded
	unhealthy
	tooSmall // The GPU could not take the request if it were idle.
	exclusive
	notIdle
	noSlot
	otherPolicy
	noCompute
	noMemory
)

// None reports whether the GPU takes the request.
func (r Reason) None() bool { return r.cause == accepted }

// Excluded reports whether the pod's annotations exclude the GPU.
func (r Reason) Excluded() bool { return r.cause == excluded }

// String describes the reason: GPU 3: 2 GiB of 80 left; needs 4.
func (r Reason) String() string {
	if r.None() {
		return ""
	}
	return "GPU " + strconv.Itoa(r.gpu.Index) + ": " + r.detail()
}

// detail returns the reason without the GPU.
func (r Reason) detail() string {
	g := r.gpu
	switch r.cause {
	case excluded:
		if names(r.r.Avoid, g.UUID) {
			return "the pod avoids it"
		}
		return "the pod does not select it"
	case unhealthy:
		return wellknown.Clip(g.Unhealthy)
	case tooSmall:
		return fmt.Sprintf("%s GiB in all; needs %s", gib(g.MemoryMiB, nearest), gib(r.r.MemoryMiB, up))
	case exclusive:
		return "a consumer has it exclusively"
	case notIdle:
		if g.Consumers == 1 {
			return "1 consumer; needs it idle"
		}
		return fmt.Sprintf("%d consumers; needs it idle", g.Consumers)
	case noSlot:
		return fmt.Sprintf("all %d slots are taken", g.Slots)
	case otherPolicy:
		return "its consumers are " + wellknown.Clip(string(g.Policy)) + ", not " + string(r.r.Policy)
	case noCompute:
		return fmt.Sprintf("%d %% of 100 left; needs %d", max(0, Whole-g.VCore), r.r.VCore)
	case noMemory:
		left := max(0, g.Room()-g.UsedMiB)
		return fmt.Sprintf("%s GiB of %s left; needs %s", gib(left, down), gib(g.Room(), nearest), gib(g.needs(r.r), up))
	case accepted:
	}
	return ""
}
