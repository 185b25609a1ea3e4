package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// Bounds on the status of one node: NodeTopology's bound, and the length of a readable condition.
const (
	maxFindings  = 32
	maxSentences = 3
	maxSentence  = 1024
)

// kindLeaf is the kind of group that users mean by a node's leaf.
const kindLeaf = "leaf"

// Cables returns the status of a node's cables from the groups that hold it, top first, its
// element, and its report, nil if it has no valid report.
func Cables(holders []*fabric.Element, e *fabric.Element, r *informers.Report) informers.Cables {
	if r == nil {
		return informers.Cables{Summary: unique.Make(informers.CablesSummary{})}
	}
	known, all := r.FabricPorts()
	sum := informers.CablesSummary{Rails: fmt.Sprintf("%d/%d", known, all)}
	if len(holders) > 0 {
		sum.Leaf = holders[len(holders)-1].Name
		if at := slices.IndexFunc(holders, func(h *fabric.Element) bool { return h.Kind == kindLeaf }); at >= 0 {
			sum.Leaf = holders[at].Name
		}
	}
	var out informers.Cables
	for i := range e.Findings {
		f := &e.Findings[i]
		if f.Kind == fabric.Unseen {
			continue // Not a fault of the cable.
		}
		sum.Findings++
		if len(out.Findings) < maxFindings {
			out.Findings = append(out.Findings, v1alpha1.Finding{
				Kind: string(f.Kind), Port: clip(f.Subject(), 256), Message: clip(f.Sentence(), maxSentence),
			})
		}
	}
	sum.Condition = condition(out.Findings, int(sum.Findings), known, all, len(holders) > 0)
	out.Summary = unique.Make(sum)
	return out
}

// condition is True where every fabric port is where it is expected, False with
// the first findings, and Unknown where no switch is known and the node is in no
// group. Nodes without a fabric have none.
func condition(findings []v1alpha1.Finding, n, known, all int, grouped bool) informers.Condition {
	switch {
	case n > 0:
		var text []string
		for _, f := range findings[:min(len(findings), maxSentences)] {
			text = append(text, f.Message)
		}
		if more := n - len(text); more > 0 {
			text = append(text, fmt.Sprintf("and %d more", more))
		}
		return informers.Condition{
			Status: string(corev1.ConditionFalse), Reason: Reason(findings[0].Kind),
			Message: clip(strings.Join(text, "; "), maxSentence),
		}
	case all == 0 && !grouped:
		return informers.Condition{}
	case known == 0 && !grouped:
		return informers.Condition{
			Status: string(corev1.ConditionUnknown), Reason: "SwitchesUnknown",
			Message: "no switch behind the node's fabric ports is known",
		}
	}
	return informers.Condition{
		Status: string(corev1.ConditionTrue), Reason: "AsExpected",
		Message: "every known cable ends where it is expected",
	}
}

// Reason returns the reason of the condition and of Events for a kind of finding.
func Reason(kind string) string {
	reasons := map[fabric.Fault]string{
		fabric.Miscabled: wellknown.EventCableMisplaced, fabric.Dead: wellknown.EventLinkDown,
		fabric.Missing: wellknown.EventPortMissing, fabric.Duplicate: wellknown.EventDuplicateGUID,
		fabric.BadPath: wellknown.EventPathContradicts, fabric.Degraded: wellknown.EventLinkDegraded,
	}
	return cmp.Or(reasons[fabric.Fault(kind)], wellknown.EventFabricFinding)
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-3], "") + "..."
}
