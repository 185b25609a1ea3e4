package nodesync

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// applyAttempts bounds the answers to conflicts: each attempt drops at least
// one key, and a cluster has few other labelers.
const applyAttempts = 4

// labelPlan is what to apply, and the conflicts of what is not applied.
type labelPlan struct {
	apply     map[string]string
	conflicts []Conflict
	// write is whether applying would change the Node.
	write bool
}

// planLabels compares want with the node. A key that another manager holds
// with another value is left out unless force.
func planLabels(node *corev1.Node, want map[string]string, force bool) labelPlan {
	owners := labelOwners(node.ManagedFields)
	p := labelPlan{apply: make(map[string]string, len(want))}
	owned := map[string]bool{}
	for key, managers := range owners {
		owned[key] = slices.Contains(managers, wellknown.FieldManager)
	}
	for key, value := range want {
		have, there := node.Labels[key]
		if there && have != value && !owned[key] && !force && len(owners[key]) > 0 {
			p.conflicts = append(p.conflicts, Conflict{
				Kind: "label", Key: key, Want: value, Have: have, Manager: strings.Join(owners[key], ","),
			})
			continue
		}
		p.apply[key] = value
		if !there || have != value || !owned[key] {
			p.write = true
		}
	}
	for key, own := range owned {
		if _, keep := p.apply[key]; own && !keep {
			p.write = true
		}
	}
	return p
}

// labelOwners lists, for every label key, the field managers that own it.
// [wellknown.FieldManager] is among them only for what it owns by server-side
// apply.
func labelOwners(fields []metav1.ManagedFieldsEntry) map[string][]string {
	owners := map[string][]string{}
	for _, entry := range fields {
		if entry.Manager == wellknown.FieldManager && entry.Operation != metav1.ManagedFieldsOperationApply {
			continue
		}
		for _, key := range labelKeys(entry.FieldsV1) {
			owners[key] = append(owners[key], entry.Manager)
		}
	}
	for _, managers := range owners {
		slices.Sort(managers)
	}
	return owners
}

// labelKeys are the labels in a FieldsV1 tree: {"f:metadata":{"f:labels":
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

func (s *Syncer) syncLabels(ctx context.Context, want map[string]string, force bool, r *Result) error {
	plan := planLabels(r.Node, want, force)
	for range applyAttempts {
		if !plan.write {
			r.Conflicts = append(r.Conflicts, plan.conflicts...)
			return nil
		}
		node, err := s.applyLabels(ctx, plan.apply, force)
		if err == nil {
			if node.ResourceVersion != r.Node.ResourceVersion {
				r.Writes++
			}
			r.Node = node
			r.Conflicts = append(r.Conflicts, plan.conflicts...)
			return nil
		}
		// One conflict fails the whole apply: drop those keys, keep the rest.
		conflicts := applyConflicts(err, plan.apply, r.Node.Labels)
		if len(conflicts) == 0 {
			return fmt.Errorf("apply labels of node %s: %w", s.node, err)
		}
		for _, c := range conflicts {
			delete(plan.apply, c.Key)
		}
		plan.conflicts = append(plan.conflicts, conflicts...)
	}
	return fmt.Errorf("apply labels of node %s: still in conflict after %d attempts", s.node, applyAttempts)
}

// applyLabels is one server-side apply with exactly these labels.
func (s *Syncer) applyLabels(ctx context.Context, labels map[string]string, force bool) (*corev1.Node, error) {
	metadata := map[string]any{"name": s.node}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode labels: %w", err)
	}
	node := &corev1.Node{}
	err = s.client.Patch(types.ApplyPatchType).Resource("nodes").Name(s.node).
		VersionedParams(&metav1.PatchOptions{FieldManager: wellknown.FieldManager, Force: &force}, metav1.ParameterCodec).
		Body(body).Do(ctx).Into(node)
	return node, err
}

// applyConflicts reads the keys out of the API server's answer: one cause a
// field, with field ".metadata.labels.KEY" and a message that names the
// manager: `conflict with "gfd" using v1`.
func applyConflicts(err error, want, have map[string]string) []Conflict {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	byField := map[string]string{}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			byField[cause.Field] = quoted(cause.Message)
		}
	}
	var out []Conflict
	for _, key := range slices.Sorted(maps.Keys(want)) {
		manager, ok := byField[".metadata.labels."+key]
		if ok {
			out = append(out, Conflict{Kind: "label", Key: key, Want: want[key], Have: have[key], Manager: manager})
		}
	}
	return out
}

// quoted is the first double-quoted part of a message.
func quoted(message string) string {
	_, rest, _ := strings.Cut(message, `"`)
	name, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return ""
	}
	return name
}

func sortConflicts(cs []Conflict) {
	slices.SortFunc(cs, func(a, b Conflict) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Key, b.Key))
	})
}
