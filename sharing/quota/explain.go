package quota

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// MaxExplanation bounds what [Explain] says, in bytes: an Event's note has
// 1,024.
const MaxExplanation = 900

// Explain says why [Place] finds no cards for a request, for the person whose
// pod waits: what is asked for, how many cards have it, and what the others
// lack. It is empty if Place finds them.
func Explain(cards []GPU, r *Request) string {
	if len(cards) == 0 {
		return "the node shares no card"
	}
	able, lacks := assess(cards[:min(len(cards), MaxGPUs)], r)
	if able >= r.GPUs {
		return ""
	}
	var text strings.Builder
	switch {
	case r.GPUs > len(cards):
		fmt.Fprintf(&text, "%d cards are asked for and the node shares %d", r.GPUs, len(cards))
	case r.GPUs == 1:
		fmt.Fprintf(&text, "no card of %d can give %s", len(cards), r.each())
	default:
		fmt.Fprintf(&text, "%d cards are asked for and %d of %d can give %s", r.GPUs, able, len(cards), r.each())
	}
	if unknown := r.unknownUUIDs(cards); len(unknown) > 0 {
		fmt.Fprintf(&text, ". The node does not share %s", strings.Join(unknown, ", "))
	}
	for i, l := range lacks {
		line := ". " + l.String()
		if text.Len()+len(line) > MaxExplanation {
			fmt.Fprintf(&text, ". %d more cards lack something else", count(lacks[i:]))
			break
		}
		text.WriteString(line)
	}
	return text.String()
}

// lack is what some cards lack.
type shortfall struct {
	gpus []int
	text string
}

// look counts the cards that take a request, and groups the others.
func assess(cards []GPU, r *Request) (able int, lacks []shortfall) {
	for i := range cards {
		why := cards[i].Reject(r)
		if why.None() {
			able++
			continue
		}
		words := why.detail()
		at := slices.IndexFunc(lacks, func(l shortfall) bool { return l.text == words })
		if at < 0 {
			at, lacks = len(lacks), append(lacks, shortfall{text: words})
		}
		lacks[at].gpus = append(lacks[at].gpus, cards[i].Index)
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

// String is as [Reason.String], with all cards: cards 0-3, 6: ….
func (l shortfall) String() string {
	cards := slices.Sorted(slices.Values(l.gpus))
	var text strings.Builder
	for i := 0; i < len(cards); {
		end := i + 1
		for end < len(cards) && cards[end] <= cards[end-1]+1 {
			end++
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(strconv.Itoa(cards[i]))
		if end-i > 1 {
			text.WriteString("-" + strconv.Itoa(cards[end-1]))
		}
		i = end
	}
	noun := "card "
	if len(cards) > 1 {
		noun = "cards "
	}
	return noun + text.String() + ": " + l.text
}

// unknown are the UUIDs that the pod asks for and the node does not share, a
// few of them.
func (r *Request) unknownUUIDs(cards []GPU) []string {
	const most = 3
	var unknown []string
	for _, uuid := range r.Use {
		if !slices.ContainsFunc(cards, func(c GPU) bool { return c.UUID == uuid }) {
			unknown = append(unknown, wellknown.Clip(uuid))
		}
	}
	if more := len(unknown) - most; more > 0 {
		unknown = append(unknown[:most], fmt.Sprintf("%d more", more))
	}
	return unknown
}
