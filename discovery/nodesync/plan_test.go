package nodesync

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// owns is a managedFields entry of manager for the label keys.
func owns(manager string, op metav1.ManagedFieldsOperationType, keys ...string) metav1.ManagedFieldsEntry {
	quoted := make([]string, 0, len(keys))
	for _, k := range keys {
		quoted = append(quoted, `"f:`+k+`":{}`)
	}
	raw := `{"f:metadata":{"f:labels":{".":{},` + strings.Join(quoted, ",") + `}}}`
	return metav1.ManagedFieldsEntry{Manager: manager, Operation: op, FieldsV1: metav1.NewFieldsV1(raw)}
}

func TestPlanLabels(t *testing.T) {
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	for _, tt := range []struct {
		name   string
		labels map[string]string
		fields []metav1.ManagedFieldsEntry
		want   map[string]string
		force  bool
		plan   labelPlan
	}{
		{
			name: "first labels",
			want: map[string]string{"a": "1"},
			plan: labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
		{
			name:   "nothing changed",
			labels: map[string]string{"a": "1", "zone": "z"},
			fields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, apply, "a"), owns("kubelet", update, "zone")},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}},
		},
		{
			name:   "a stale label goes",
			labels: map[string]string{"a": "1", "old": "1"},
			fields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, apply, "a", "old")},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
		{
			name:   "another labeler with the same value is joined",
			labels: map[string]string{"a": "1"},
			fields: []metav1.ManagedFieldsEntry{owns("gfd", update, "a")},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
		{
			name:   "another labeler with another value is yielded to",
			labels: map[string]string{"a": "2", "b": "1"},
			fields: []metav1.ManagedFieldsEntry{owns("gfd", update, "a"), owns(wellknown.FieldManager, apply, "b")},
			want:   map[string]string{"a": "1", "b": "1"},
			plan: labelPlan{
				apply:     map[string]string{"b": "1"},
				conflicts: []Conflict{{Kind: "label", Key: "a", Want: "1", Have: "2", Manager: "gfd"}},
			},
		},
		{
			name:   "a key that is heddle's alone is taken back",
			labels: map[string]string{"heddle.dev/rdma.hca.count": "evil", "a": "2"},
			fields: []metav1.ManagedFieldsEntry{owns("curl", update, "heddle.dev/rdma.hca.count"), owns("gfd", update, "a")},
			want:   map[string]string{"heddle.dev/rdma.hca.count": "8", "a": "1"},
			plan: labelPlan{
				apply:     map[string]string{"heddle.dev/rdma.hca.count": "8"},
				conflicts: []Conflict{{Kind: "label", Key: "a", Want: "1", Have: "2", Manager: "gfd"}}, write: true, takes: true,
			},
		},
		{
			name:   "so is what was written in heddle's name",
			labels: map[string]string{"a": "evil"},
			fields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, update, "a")},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true, takes: true},
		},
		{
			name:   "an own value that changes takes nothing",
			labels: map[string]string{"a": "1"},
			fields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, apply, "a")},
			want:   map[string]string{"a": "2"},
			plan:   labelPlan{apply: map[string]string{"a": "2"}, write: true},
		},
		{
			name:   "unless forced",
			labels: map[string]string{"a": "2"},
			fields: []metav1.ManagedFieldsEntry{owns("gfd", update, "a")},
			want:   map[string]string{"a": "1"},
			force:  true,
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
		{
			name:   "a value without an owner is corrected",
			labels: map[string]string{"a": "2"},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
		{
			name:   "a key that another labeler shares is left to it when the value changes",
			labels: map[string]string{"a": "1"},
			fields: []metav1.ManagedFieldsEntry{owns("gfd", update, "a"), owns(wellknown.FieldManager, apply, "a")},
			want:   map[string]string{"a": "2"},
			plan: labelPlan{
				apply:     map[string]string{},
				conflicts: []Conflict{{Kind: "label", Key: "a", Want: "2", Have: "1", Manager: "gfd"}}, write: true,
			},
		},
		{
			name:   "an own Update entry is not ownership",
			labels: map[string]string{"a": "1"},
			fields: []metav1.ManagedFieldsEntry{owns(wellknown.FieldManager, update, "a")},
			want:   map[string]string{},
			plan:   labelPlan{apply: map[string]string{}},
		},
		{
			name:   "managed fields that do not parse own nothing",
			labels: map[string]string{"a": "1"},
			fields: []metav1.ManagedFieldsEntry{{Manager: "x", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":7`)}, {Manager: "y"}},
			want:   map[string]string{"a": "1"},
			plan:   labelPlan{apply: map[string]string{"a": "1"}, write: true},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels, ManagedFields: tt.fields}}
			got := planLabels(node, tt.want, tt.force)
			if diff := cmp.Diff(tt.plan, got, cmp.AllowUnexported(labelPlan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanTaints(t *testing.T) {
	taint := func(key, value string) corev1.Taint {
		return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule}
	}
	for _, tt := range []struct {
		name   string
		record string
		has    []corev1.Taint
		want   []corev1.Taint
		plan   taintPlan
	}{
		{
			name: "none and none",
		},
		{
			name: "a new taint joins the foreign ones",
			has:  []corev1.Taint{taint("foreign", "x")},
			want: []corev1.Taint{taint("usage", "training")},
			plan: taintPlan{
				taints: []corev1.Taint{taint("foreign", "x"), taint("usage", "training")},
				owned:  []string{"usage:NoSchedule"}, write: true,
			},
		},
		{
			name:   "nothing changed",
			record: `["usage:NoSchedule"]`,
			has:    []corev1.Taint{taint("usage", "training"), taint("foreign", "x")},
			want:   []corev1.Taint{taint("usage", "training")},
			plan: taintPlan{
				taints: []corev1.Taint{taint("usage", "training"), taint("foreign", "x")},
				owned:  []string{"usage:NoSchedule"},
			},
		},
		{
			name:   "an owned value changes in place",
			record: `["usage:NoSchedule"]`,
			has:    []corev1.Taint{taint("usage", "training"), taint("foreign", "x")},
			want:   []corev1.Taint{taint("usage", "inference")},
			plan: taintPlan{
				taints: []corev1.Taint{taint("usage", "inference"), taint("foreign", "x")},
				owned:  []string{"usage:NoSchedule"}, write: true,
			},
		},
		{
			name:   "a stale taint goes, a foreign one with the same key and another effect stays",
			record: `["usage:NoSchedule"]`,
			has:    []corev1.Taint{taint("usage", "training"), {Key: "usage", Value: "x", Effect: corev1.TaintEffectNoExecute}},
			plan: taintPlan{
				taints: []corev1.Taint{{Key: "usage", Value: "x", Effect: corev1.TaintEffectNoExecute}}, write: true,
			},
		},
		{
			name: "another writer's taint with a wanted key is left and reported",
			has:  []corev1.Taint{taint("usage", "have")},
			want: []corev1.Taint{taint("usage", "want")},
			plan: taintPlan{
				taints:    []corev1.Taint{taint("usage", "have")},
				conflicts: []Conflict{{Kind: "taint", Key: "usage:NoSchedule", Want: "want", Have: "have"}},
			},
		},
		{
			name:   "a record of a removed taint is corrected",
			record: `["gone:NoSchedule"]`,
			plan:   taintPlan{write: true},
		},
		{
			name:   "a record that does not parse owns nothing",
			record: `{"half":`,
			has:    []corev1.Taint{taint("usage", "training")},
			plan:   taintPlan{taints: []corev1.Taint{taint("usage", "training")}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := &corev1.Node{Spec: corev1.NodeSpec{Taints: tt.has}}
			if tt.record != "" {
				node.Annotations = map[string]string{wellknown.OwnedTaints: tt.record}
			}
			got := planTaints(node, &Desired{Taints: tt.want})
			if diff := cmp.Diff(tt.plan, got, cmp.AllowUnexported(taintPlan{})); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
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
