package nodesync

import (
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write the results in testdata")

// owns is a managedFields entry of manager for the label keys.
func owns(manager string, op metav1.ManagedFieldsOperationType, keys ...string) metav1.ManagedFieldsEntry {
	quoted := make([]string, 0, len(keys))
	for _, k := range keys {
		quoted = append(quoted, `"f:`+k+`":{}`)
	}
	raw := `{"f:metadata":{"f:labels":{".":{},` + strings.Join(quoted, ",") + `}}}`
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: op, FieldsV1: metav1.NewFieldsV1(raw)}
}

// TestPlanLabels: the file has the labels of a Node, who manages which by what operation, the labels that heddle wants,
// and what it applies.
func TestPlanLabels(t *testing.T) {
	golden.Rows(t, "testdata/labels.txt", *update, func(text string) string {
		var row struct {
			Labels, Want map[string]string
			Fields       []string
			Force        bool
		}
		if err := json.Unmarshal([]byte(text), &row); err != nil { //nolint:musttag // Rows are of this test alone.
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: row.Labels}}
		for _, field := range row.Fields {
			words := strings.Fields(field)
			entry := metav1.ManagedFieldsEntry{Manager: words[1]}
			switch words[0] {
			case "None":
			case "Broken":
				entry.FieldsV1 = metav1.NewFieldsV1(`{"f:metadata":7`)
			default:
				entry = owns(words[1], metav1.ManagedFieldsOperationType(words[0]), words[2:]...)
			}
			node.ManagedFields = append(node.ManagedFields, entry)
		}
		return fmt.Sprintf("%+v", planLabels(node, row.Want, row.Force))
	})
}

// TestPlanTaints: the file has the taints of a Node, the record of heddle's, those that heddle wants, and what it writes.
func TestPlanTaints(t *testing.T) {
	taints := func(list []string) (all []corev1.Taint) {
		for _, text := range list {
			what, effect, _ := strings.Cut(text, ":")
			key, value, _ := strings.Cut(what, "=")
			all = append(all, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
		}
		return all
	}
	golden.Rows(t, "testdata/taints.txt", *update, func(text string) string {
		var row struct {
			Record    string
			Has, Want []string
		}
		if err := json.Unmarshal([]byte(text), &row); err != nil { //nolint:musttag // Rows are of this test alone.
			t.Fatal(err)
		}
		node := &corev1.Node{Spec: corev1.NodeSpec{Taints: taints(row.Has)}}
		if row.Record != "" {
			node.Annotations = map[string]string{wellknown.OwnedTaints: row.Record}
		}
		return strings.ReplaceAll(fmt.Sprintf("%+v", planTaints(node, &Desired{Taints: taints(row.Want)})), " TimeAdded:<nil>", "")
	})
}

func TestPreview(t *testing.T) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Labels:        map[string]string{"old": "1", "a": "1", "zone": "z"},
			Annotations:   map[string]string{wellknown.OwnedTaints: `["usage:NoSchedule"]`},
			ManagedFields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, metav1.ManagedFieldsOperationApply, "a", "old")},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "usage", Value: "training", Effect: "NoSchedule"}}},
	}
	got, conflicts := Preview(n, Desired{
		Labels: map[string]string{"a": "2", "new": "1", "zone": "z"},
		Taints: []corev1.Taint{{Key: "control-plane", Effect: "NoSchedule"}},
	})
	want := []string{
		"+ new=1", "- old=1", "~ a=1 -> 2",
		"- taint usage=training:NoSchedule", "+ taint control-plane:NoSchedule",
	}
	if diff := cmp.Diff(want, got); diff != "" || len(conflicts) != 0 {
		t.Errorf("preview (-want +got):\n%s\nconflicts: %v", diff, conflicts)
	}
}
