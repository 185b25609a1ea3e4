package nodesync

import (
	"encoding/json"
	"maps"
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

// taintPlan is the whole list to write, and which of it heddle owns.
type taintPlan struct {
	taints    []corev1.Taint
	owned     []string
	conflicts []Conflict
	// annotations are the others that change with them; nil removes one.
	annotations map[string]any
	// write is whether the list, the record or an annotation would change.
	write bool
}

// planTaints merges want into the node's taints. A taint is identified by key and
// effect, as in the API. heddle owns those in the annotation; a taint that is not
// recorded there is another writer's, whatever its value.
func planTaints(node *corev1.Node, want *Desired) taintPlan {
	recorded := recordedTaints(node)
	wanted := map[string]corev1.Taint{}
	for _, t := range want.Taints {
		wanted[taintID(t)] = t
	}
	var p taintPlan
	for _, t := range node.Spec.Taints {
		id := taintID(t)
		w, wants := wanted[id]
		delete(wanted, id)
		if !slices.Contains(recorded, id) {
			p.taints = append(p.taints, t)
			if wants && w.Value != t.Value {
				p.conflicts = append(p.conflicts, Conflict{Kind: "taint", Key: id, Want: w.Value, Have: t.Value})
			}
			continue
		}
		if wants && w.Value == t.Value {
			w = t // Kept as it is: TimeAdded is the API server's.
		} else {
			p.write = true
		}
		if wants {
			p.taints, p.owned = append(p.taints, w), append(p.owned, id)
		}
	}
	for _, t := range want.Taints {
		if _, missing := wanted[taintID(t)]; missing {
			p.write = true
			p.taints, p.owned = append(p.taints, t), append(p.owned, taintID(t))
			delete(wanted, taintID(t))
		}
	}
	slices.Sort(p.owned)
	p.write = p.write || !slices.Equal(p.owned, recorded)
	p.remember(node, want.DriverAbsentSince)
	return p
}

// remember plans the annotation of since when the driver is absent; empty removes it.
func (p *taintPlan) remember(node *corev1.Node, since string) {
	if since == node.Annotations[wellknown.DriverAbsentSince] {
		return
	}
	p.write, p.annotations = true, map[string]any{wellknown.DriverAbsentSince: since}
	if since == "" {
		p.annotations[wellknown.DriverAbsentSince] = nil
	}
}

// taintID returns how the API identifies a taint: "key:effect".
func taintID(t corev1.Taint) string { return t.Key + ":" + string(t.Effect) }

// recordedTaints returns the annotation's list. One that does not parse owns
// nothing: a taint too many is better than one of another writer removed.
func recordedTaints(node *corev1.Node) (ids []string) {
	if err := json.Unmarshal([]byte(node.Annotations[wellknown.OwnedTaints]), &ids); err != nil {
		return nil
	}
	return ids
}

// patch returns a merge patch of one version: the API server rejects it for another.
func (p *taintPlan) patch(version string) (any, error) {
	var record any // null removes the annotation
	if len(p.owned) > 0 {
		text, err := json.Marshal(p.owned)
		if err != nil {
			return nil, err
		}
		record = string(text)
	}
	annotations := map[string]any{wellknown.OwnedTaints: record}
	maps.Copy(annotations, p.annotations)
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": version, "annotations": annotations},
		"spec":     map[string]any{"taints": p.taints},
	}, nil
}
