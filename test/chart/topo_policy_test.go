package chart

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

// masterAttempt is a write to the Node n1 by the topo-master's token.
func masterAttempt() *attempt {
	a := &attempt{old: node(), new: node(), request: updating("n1", topoMaster, "n7")}
	a.old.Labels["heddle.dev/topology.leaf"] = "leaf-a"
	a.new.Labels["heddle.dev/topology.leaf"] = "leaf-a"
	return a
}

func TestTopoMasterPolicy(t *testing.T) {
	const noLife = "heddle-topo-master may neither create nor delete a Node"
	fields := func(words string) []string { return []string{"heddle-topo-master may not change " + words} }
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		args []string
		deny []string
	}{
		{name: "nothing", do: func(*attempt) {}},
		{name: "a group", do: func(a *attempt) { a.new.Labels["heddle.dev/topology.leaf"] = "leaf-b" }},
		{name: "a new group", do: func(a *attempt) { a.new.Labels["heddle.dev/topology.spine"] = "spine-b" }},
		{name: "a shape", do: func(a *attempt) { a.new.Labels["heddle.dev/topology-shape"] = "spine.leaf" }},
		{
			name: "topograph's keys", args: []string{"--set", "topoDiscovery.master.exports={labels,topograph}"},
			do: func(a *attempt) {
				a.new.Labels["fabric.topograph.run/tier-0"] = "leaf-b"
				a.new.Labels["accelerator.topograph.run/domain"] = "nvlink-b"
			},
		},
		{name: "a group removed", do: func(a *attempt) { delete(a.new.Labels, "heddle.dev/topology.leaf") }},
		{
			name: "keys of an export that is off", do: func(a *attempt) {
				a.old.Labels["fabric.topograph.run/tier-0"] = "leaf-b"
				a.old.ManagedFields = append(a.old.ManagedFields,
					managed(publish.FieldManager, metav1.ManagedFieldsOperationApply, "fabric.topograph.run/tier-0"))
			},
		},
		{
			name: "another manager's keys", do: func(a *attempt) { a.old.Labels["fabric.topograph.run/tier-0"] = "leaf-b" },
			deny: []string{"heddle-topo-master may not change labels fabric.topograph.run/tier-0"},
		},
		{
			name: "what a GPU is", do: func(a *attempt) { a.new.Labels["nvidia.com/gpu.product"] = "x" },
			deny: []string{"heddle-topo-master may not change labels nvidia.com/gpu.product"},
		},
		{
			name: "a key that only begins so", do: func(a *attempt) { a.new.Labels["heddle.dev/topology."] = "x" },
			deny: []string{"heddle-topo-master may not change labels heddle.dev/topology."},
		},
		{
			name: "an annotation", do: func(a *attempt) { a.new.Annotations["heddle.dev/cordoned-gpus"] = "x" },
			deny: fields("metadata.annotations"),
		},
		{name: "a taint", do: func(a *attempt) { a.new.Spec.Taints = nil }, deny: fields("spec.taints")},
		{name: "cordoned", do: func(a *attempt) { a.new.Spec.Unschedulable = true }, deny: fields("spec.unschedulable")},
		{name: "the condition of the fabric", do: func(a *attempt) {
			a.request["subResource"] = "status"
			a.new.Status.Conditions = append(a.new.Status.Conditions, corev1.NodeCondition{Type: wellknown.ConditionFabric})
		}},
		{
			name: "a condition of the kubelet", do: func(a *attempt) {
				a.new.Status.Conditions = append(a.new.Status.Conditions, corev1.NodeCondition{Type: "DiskPressure"})
			},
			deny: []string{"heddle-topo-master may not change conditions DiskPressure"},
		},
		{
			name: "a condition of another taken away", do: func(a *attempt) {
				a.old.Status.Conditions = []corev1.NodeCondition{{Type: "GPUHealthy"}}
				a.new.Status.Conditions = nil
			},
			deny: []string{"heddle-topo-master may not change conditions GPUHealthy"},
		},
		{name: "capacity", do: func(a *attempt) { a.old.Status.Capacity = corev1.ResourceList{"cpu": {}} }, deny: fields("status.capacity")},
		{name: "the log of a Node", do: func(a *attempt) { a.request["subResource"] = "proxy" }, deny: []string{noLife}},
		{
			name: "a Node deleted", do: func(a *attempt) { a.request["operation"], a.new = "DELETE", nil },
			deny: []string{noLife},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := masterAttempt()
			tt.do(a)
			p := policyOf(t, renderTopo(t, tt.args...), topoMaster)
			if !p.matches(t, a) {
				t.Fatal("the policy does not look at the request")
			}
			got := p.denials(t, a)
			if a.new == nil && len(got) > 1 {
				got = got[:1] // A deletion changes all there is.
			}
			if diff := cmp.Diff(tt.deny, got); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			a.user()["username"] = "system:serviceaccount:heddle-system:heddle-topo-worker"
			if p.matches(t, a) {
				t.Error("the policy looks at requests of others")
			}
		})
	}
}

func TestTopoWorkerPolicy(t *testing.T) {
	const (
		ownNode  = "heddle-topo-worker may write only the NodeTopology of the Node that its pod runs on, by the pod's own token"
		oneOwner = "a NodeTopology has one owner, the Node of its name"
		noDelete = "heddle-topo-worker may not delete a NodeTopology"
	)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u"}
	for _, tt := range []struct {
		name   string
		do     func(*v1alpha1.NodeTopology, map[string]any)
		delete bool
		deny   []string
	}{
		{name: "its own", do: func(*v1alpha1.NodeTopology, map[string]any) {}},
		{name: "its heartbeat", do: func(_ *v1alpha1.NodeTopology, r map[string]any) { r["subResource"] = "status" }},
		{
			name: "another node's", do: func(n *v1alpha1.NodeTopology, _ map[string]any) {
				n.Name, n.OwnerReferences[0].Name = "n2", "n2"
			},
			deny: []string{ownNode},
		},
		{
			name: "owned by another Node", do: func(n *v1alpha1.NodeTopology, _ map[string]any) { n.OwnerReferences[0].Name = "n2" },
			deny: []string{oneOwner},
		},
		{
			name: "owned by two", do: func(n *v1alpha1.NodeTopology, _ map[string]any) {
				n.OwnerReferences = append(n.OwnerReferences, owner)
			},
			deny: []string{oneOwner},
		},
		{
			name: "without an owner", do: func(n *v1alpha1.NodeTopology, _ map[string]any) { n.OwnerReferences = nil },
			deny: []string{oneOwner},
		},
		{
			name: "a token without a node", do: func(_ *v1alpha1.NodeTopology, r map[string]any) {
				delete(r["userInfo"].(map[string]any), "extra")
			},
			deny: []string{ownNode},
		},
		{name: "deleted", do: func(*v1alpha1.NodeTopology, map[string]any) {}, delete: true, deny: []string{noDelete}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			object := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{
				Name: "n1", OwnerReferences: []metav1.OwnerReference{owner},
			}}
			request := updating("n1", topoWorker, "n1")
			tt.do(object, request)
			in := map[string]any{"object": plain(t, object), "oldObject": plain(t, object), "request": request}
			if tt.delete {
				in["object"], request["operation"] = nil, "DELETE"
			}
			p := policyOf(t, renderTopo(t), topoWorker)
			in = p.withVariables(in)
			if !p.matched(in) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denied(t, in)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			request["userInfo"].(map[string]any)["username"] = "system:serviceaccount:other:heddle-topo-worker"
			if p.matched(in) {
				t.Error("the policy looks at requests of others")
			}
		})
	}
}

// The master names the worker that discovers a leaf, and cannot forge heartbeats.
func TestTopoMasterWalksPolicy(t *testing.T) {
	at := metav1.Now().Rfc3339Copy()
	for _, tt := range []struct {
		name string
		do   func(object *v1alpha1.NodeTopology, request map[string]any)
		deny []string
	}{
		{name: "what is known of the cables", do: func(n *v1alpha1.NodeTopology, _ map[string]any) {
			n.Status.Leaf, n.Status.Rails, n.Status.FindingCount = "leaf-a", "7/8", new(int32(1))
			n.Status.Findings = []v1alpha1.Finding{{Kind: "dead", Message: "x"}}
			n.Status.Conditions = []metav1.Condition{{Type: wellknown.ConditionFabric}}
		}},
		{name: "who walks", do: func(n *v1alpha1.NodeTopology, _ map[string]any) { n.Status.Walk = []string{"a"} }},
		{
			name: "a heartbeat taken away", do: func(n *v1alpha1.NodeTopology, _ map[string]any) { n.Status.HeartbeatTime = nil },
			deny: []string{"heddle-topo-master may not change status.heartbeatTime"},
		},
		{
			name: "a forged heartbeat", do: func(n *v1alpha1.NodeTopology, _ map[string]any) {
				n.Status.HeartbeatTime = &metav1.Time{Time: at.AddDate(1, 0, 0)}
			},
			deny: []string{"heddle-topo-master may not change status.heartbeatTime"},
		},
		{
			name: "the report", do: func(_ *v1alpha1.NodeTopology, r map[string]any) { delete(r, "subResource") },
			deny: []string{"heddle-topo-master may write the status of a NodeTopology only"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := &v1alpha1.NodeTopology{Status: v1alpha1.NodeTopologyStatus{HeartbeatTime: &at}}
			object := old.DeepCopy()
			request := map[string]any{"name": "n1", "operation": "UPDATE", "subResource": "status", "userInfo": map[string]any{
				"username": "system:serviceaccount:heddle-system:heddle-topo-master",
			}}
			tt.do(object, request)
			p := policyOf(t, renderTopo(t), topoMaster+"-walks")
			in := p.withVariables(map[string]any{"object": plain(t, object), "oldObject": plain(t, old), "request": request})
			if !p.matched(in) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denied(t, in)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			request["userInfo"].(map[string]any)["username"] = "system:serviceaccount:heddle-system:heddle-topo-worker"
			if p.matched(in) {
				t.Error("the policy looks at requests of others")
			}
		})
	}
}
