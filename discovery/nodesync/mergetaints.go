package nodesync

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

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
