package informers

import (
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Condition is the condition HeddleFabric of a Node or a NodeTopology, without its times. The zero
// value means that it is absent.
type Condition struct{ Status, Reason, Message string }

// CablesSummary is the part of [Cables] that many nodes have alike.
type CablesSummary struct {
	// Leaf, Rails and Findings mirror NodeTopologyStatus; Findings is the number of all findings.
	Leaf, Rails string
	Findings    int32
	Condition   Condition
}

// Cables holds the written or desired status of a node's cables.
type Cables struct {
	Summary  unique.Handle[CablesSummary]
	Findings []v1alpha1.Finding
	// Walk are the leaves with uplinks for the node's worker to discover.
	Walk []string
}

// Equal compares all.
func (c Cables) Equal(o Cables) bool {
	return c.Summary == o.Summary && slices.Equal(c.Findings, o.Findings) && slices.Equal(c.Walk, o.Walk)
}

// readCables reads a status, and since when its condition has that status.
func readCables(s *v1alpha1.NodeTopologyStatus) (c Cables, since int64) {
	sum := CablesSummary{Leaf: s.Leaf, Rails: s.Rails}
	if s.FindingCount != nil {
		sum.Findings = *s.FindingCount
	}
	if f := meta.FindStatusCondition(s.Conditions, wellknown.ConditionFabric); f != nil {
		sum.Condition = Condition{string(f.Status), f.Reason, f.Message}
		since = f.LastTransitionTime.Unix()
	}
	return Cables{Summary: unique.Make(sum), Findings: s.Findings, Walk: s.Walk}, since
}

// readCondition returns a Node's condition HeddleFabric.
func readCondition(all []corev1.NodeCondition) unique.Handle[Condition] {
	for i := range all {
		if c := &all[i]; c.Type == wellknown.ConditionFabric {
			return unique.Make(Condition{string(c.Status), c.Reason, c.Message})
		}
	}
	return unique.Make(Condition{})
}
