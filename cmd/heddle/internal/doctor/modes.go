package doctor

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
)

// conditionModes is the condition of the Node while cards wait for pods to end.
const conditionModes = "HeddleModePending"

// modesOf tells of cards that are handed out otherwise than configured, or to
// nobody, but for what somebody has said already.
func modesOf(r *report.Report, said []finding.Finding) []finding.Finding {
	var all []finding.Finding
	note := func(says, do string) {
		if !slices.ContainsFunc(said, func(f finding.Finding) bool { return f.Message == says }) {
			all = append(all, finding.Finding{Level: finding.Note, Subject: "Node " + r.Node, Message: says, Remedy: do})
		}
	}
	for i := range r.Cards {
		if says := r.Cards[i].Pending(); says != "" {
			note(says, "")
		}
	}
	for i := range r.Cards {
		if r.Cards[i].Cordoned {
			note(cordonedCard(r.Cards[i].UUID), putBack(r.Node, r.Cards[i].UUID))
		}
	}
	for _, uuid := range r.Strangers {
		note("GPU "+uuid+" is cordoned and not on this node", putBack(r.Node, uuid))
	}
	return all
}

func cordonedCard(uuid string) string { return "GPU " + uuid + " is cordoned: no new pod gets it" }

func putBack(node, uuid string) string { return "heddle gpu uncordon " + node + " " + uuid }

// modesPending tells the same by what the Node says.
func modesPending(node *corev1.Node) []finding.Finding {
	var all []finding.Finding
	note := func(says, do string) {
		all = append(all, finding.Finding{Level: finding.Note, Subject: "Node " + node.Name, Message: says, Remedy: do})
	}
	for _, c := range node.Status.Conditions {
		if c.Type != conditionModes || c.Status != corev1.ConditionTrue {
			continue
		}
		for says := range strings.SplitSeq(c.Message, "; ") {
			note(says, "")
		}
	}
	uuids, err := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
	for _, uuid := range uuids {
		note(cordonedCard(uuid), putBack(node.Name, uuid))
	}
	if err != nil {
		all = append(all, finding.Finding{
			Level: finding.Problem, Subject: "Node " + node.Name, Message: err.Error(),
			Remedy: "Mend the annotation: kubectl edit node " + node.Name,
		})
	}
	return all
}
