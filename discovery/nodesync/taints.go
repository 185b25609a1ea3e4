package nodesync

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// writeAttempts bounds the races with other writers of the Node's taints, such
// as the node lifecycle controller.
const writeAttempts = 5

// taintPlan is the whole list to write, and which of it heddle owns.
type taintPlan struct {
	taints    []corev1.Taint
	owned     []string
	conflicts []Conflict
	// write is whether the list or the record would change.
	write bool
}

// planTaints merges want into the node's taints. A taint is identified by key and
// effect, as in the API. heddle owns those in the annotation; a taint that is not
// recorded there is another writer's, whatever its value.
func planTaints(node *corev1.Node, want []corev1.Taint) taintPlan {
	owned := ownedTaints(node)
	wanted := map[string]corev1.Taint{}
	for _, t := range want {
		wanted[taintID(t)] = t
	}
	var p taintPlan
	for _, t := range node.Spec.Taints {
		id := taintID(t)
		w, wants := wanted[id]
		delete(wanted, id)
		switch {
		case !owned[id]:
			p.taints = append(p.taints, t)
			if wants && w.Value != t.Value {
				p.conflicts = append(p.conflicts, Conflict{Kind: "taint", Key: id, Want: w.Value, Have: t.Value})
			}
		case !wants:
			p.write = true
		case w.Value != t.Value:
			p.write = true
			p.taints, p.owned = append(p.taints, w), append(p.owned, id)
		default:
			// Kept as it is: TimeAdded is the API server's.
			p.taints, p.owned = append(p.taints, t), append(p.owned, id)
		}
	}
	for _, t := range want {
		if _, missing := wanted[taintID(t)]; missing {
			p.write = true
			p.taints, p.owned = append(p.taints, t), append(p.owned, taintID(t))
			delete(wanted, taintID(t))
		}
	}
	slices.Sort(p.owned)
	if !slices.Equal(p.owned, recordedTaints(node)) {
		p.write = true
	}
	return p
}

// taintID is how the API identifies a taint: "key:effect".
func taintID(t corev1.Taint) string { return t.Key + ":" + string(t.Effect) }

func ownedTaints(node *corev1.Node) map[string]bool {
	owned := map[string]bool{}
	for _, id := range recordedTaints(node) {
		owned[id] = true
	}
	return owned
}

// recordedTaints is the annotation's list. One that does not parse owns
// nothing: a taint too many is better than one of another writer removed.
func recordedTaints(node *corev1.Node) []string {
	text, ok := node.Annotations[wellknown.OwnedTaints]
	if !ok {
		return nil
	}
	var ids []string
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil
	}
	return ids
}

// syncTaints reads, modifies and writes; the resourceVersion in the patch
// makes the API server reject a write over another one.
func (s *Syncer) syncTaints(ctx context.Context, want []corev1.Taint, r *Result) error {
	for range writeAttempts {
		plan := planTaints(r.Node, want)
		if !plan.write {
			r.Conflicts = append(r.Conflicts, plan.conflicts...)
			return nil
		}
		node, err := s.writeTaints(ctx, r.Node.ResourceVersion, plan)
		switch {
		case err == nil:
			r.Node = node
			r.Writes++
			r.Conflicts = append(r.Conflicts, plan.conflicts...)
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("write taints of node %s: %w", s.node, err)
		}
		if r.Node, err = s.Node(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("write taints of node %s: another client wrote it each of %d times", s.node, writeAttempts)
}

func (s *Syncer) writeTaints(ctx context.Context, version string, p taintPlan) (*corev1.Node, error) {
	var record any // null removes the annotation
	if len(p.owned) > 0 {
		text, err := json.Marshal(p.owned)
		if err != nil {
			return nil, fmt.Errorf("encode owned taints: %w", err)
		}
		record = string(text)
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": version,
			"annotations":     map[string]any{wellknown.OwnedTaints: record},
		},
		"spec": map[string]any{"taints": p.taints},
	})
	if err != nil {
		return nil, fmt.Errorf("encode taints: %w", err)
	}
	node := &corev1.Node{}
	err = s.client.Patch(types.MergePatchType).Resource("nodes").Name(s.node).
		VersionedParams(&metav1.PatchOptions{FieldManager: wellknown.FieldManager}, metav1.ParameterCodec).
		Body(body).Do(ctx).Into(node)
	return node, err
}

// FormatTaint writes a taint as kubectl does: key=value:effect.
func FormatTaint(t corev1.Taint) string {
	var b strings.Builder
	b.WriteString(t.Key)
	if t.Value != "" {
		b.WriteString("=" + t.Value)
	}
	b.WriteString(":" + string(t.Effect))
	return b.String()
}
