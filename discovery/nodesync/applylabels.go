package nodesync

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// labelPlan has the labels to apply, and the conflicts of those that are not applied.
type labelPlan struct {
	apply     map[string]string
	conflicts []Conflict
	// write is whether applying would change the Node, takes whether that takes
	// keys back from other managers.
	write, takes bool
}

// planLabels compares want with the node. A key that another manager holds
// with another value is left out unless force: one conflict fails a whole
// apply. Keys below heddle.dev are heddle's alone and are taken back, as is what
// someone wrote in heddle's name.
func planLabels(node *corev1.Node, want map[string]string, force bool) labelPlan {
	owners := LabelOwners(node)
	p := labelPlan{apply: make(map[string]string, len(want))}
	for key, value := range want {
		have, there := node.Labels[key]
		own := slices.Contains(owners[key], wellknown.FieldManager)
		others := slices.DeleteFunc(slices.Clone(owners[key]), func(m string) bool {
			return m == wellknown.FieldManager || m == updated
		})
		differs := there && have != value && !force
		if differs && len(others) > 0 && !strings.HasPrefix(key, wellknown.Prefix) {
			p.conflicts = append(p.conflicts, Conflict{
				Kind: "label", Key: key, Want: value, Have: have, Manager: strings.Join(others, ","),
			})
			continue
		}
		p.takes = p.takes || differs && len(owners[key]) > 0 && (!own || len(owners[key]) != 1)
		p.apply[key] = value
		p.write = p.write || !there || have != value || !own
	}
	for key, managers := range owners {
		if _, keep := p.apply[key]; !keep && slices.Contains(managers, wellknown.FieldManager) {
			p.write = true
		}
	}
	return p
}

// updated is who wrote labels in heddle's name, but not by server-side apply.
const updated = wellknown.FieldManager + " by " + string(metav1.ManagedFieldsOperationUpdate)

// patch returns a server-side apply with exactly these labels. One that takes keys back
// is forced, so it is for the Node that it was planned for and no other.
func (p *labelPlan) patch(name string, node *corev1.Node) any {
	metadata := map[string]any{"name": name}
	if p.takes {
		metadata["resourceVersion"] = node.ResourceVersion
	}
	if len(p.apply) > 0 {
		metadata["labels"] = p.apply
	}
	return map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata}
}

// LabelOwners lists, for every label key of a Node, the field managers that
// own it, sorted. [wellknown.FieldManager] owns what heddle wrote by server-side
// apply; what was written in its name in another way is another's to the API
// server.
func LabelOwners(node *corev1.Node) map[string][]string {
	owners := map[string][]string{}
	for _, entry := range node.ManagedFields {
		manager := entry.Manager
		if manager == wellknown.FieldManager && entry.Operation != metav1.ManagedFieldsOperationApply {
			manager = updated
		}
		for _, key := range labelKeys(entry.FieldsV1) {
			owners[key] = append(owners[key], manager)
		}
	}
	for _, managers := range owners {
		slices.Sort(managers)
	}
	return owners
}

// labelKeys returns the labels in a FieldsV1 tree: {"f:metadata":{"f:labels":
// {"f:KEY":{}}}}. A tree that does not parse owns nothing.
func labelKeys(fields *metav1.FieldsV1) []string {
	if fields == nil {
		return nil
	}
	var tree struct {
		Metadata struct {
			Labels map[string]json.RawMessage `json:"f:labels"`
		} `json:"f:metadata"`
	}
	if err := json.Unmarshal(fields.GetRawBytes(), &tree); err != nil {
		return nil
	}
	var keys []string
	for name := range tree.Metadata.Labels {
		if key, ok := strings.CutPrefix(name, "f:"); ok {
			keys = append(keys, key)
		}
	}
	return keys
}
