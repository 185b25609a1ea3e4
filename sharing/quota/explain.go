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
	var unknown []string
	for _, uuid := range r.Use {
		if !slices.ContainsFunc(gpus, func(c GPU) bool { return c.UUID == uuid }) {
			unknown = append(unknown, wellknown.Clip(uuid))
		}
	}
	if more := len(unknown) - most; more > 0 {
		unknown = append(unknown[:most], fmt.Sprintf("%d more", more))
	}
	return unknown
}
