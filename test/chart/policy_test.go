package chart

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	nodeNameKey = "authentication.kubernetes.io/node-name"
	// What the API server lets one expression cost: PerCallLimit in
	// k8s.io/apiserver/pkg/apis/cel.
	callLimit = 1_000_000
)

// write is a request to write an object; old or new is nil where it is made or
// deleted.
type write[T any] struct {
	old, new *T
	request  map[string]any
}

// attempt is a write to the Node n1.
type attempt = write[corev1.Node]

// updating is the request to change an object, by the token of a daemon's pod.
func updating(name, daemon, podsNode string) map[string]any {
	return map[string]any{"name": name, "operation": "UPDATE", "userInfo": map[string]any{
		"username": "system:serviceaccount:heddle-system:" + daemon,
		"extra":    map[string]any{nodeNameKey: []string{podsNode}},
	}}
}

func (w *write[T]) user() map[string]any { return w.request["userInfo"].(map[string]any) }

// in is what the expressions of a policy see.
func (w *write[T]) in(t *testing.T, p *policy) map[string]any {
	t.Helper()
	in := map[string]any{"object": nil, "oldObject": nil, "request": w.request}
	if w.new != nil {
		in["object"] = plain(t, w.new)
	}
	if w.old != nil {
		in["oldObject"] = plain(t, w.old)
	}
	return p.withVariables(in)
}

// node is n1 as others left it.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n1", UID: "u", ResourceVersion: "7",
			Labels:      map[string]string{"kubernetes.io/hostname": "n1", "rack": "7", "old.example.com/gpu.product": "X"},
			Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				managed("kubelet", metav1.ManagedFieldsOperationUpdate, "kubernetes.io/hostname", "rack"),
				managed(wellknown.FieldManager, metav1.ManagedFieldsOperationApply,
					"kubernetes.io/hostname", "rack", "old.example.com/gpu.product"),
			},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "p",
			Taints:     []corev1.Taint{{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute}},
		},
	}
}

func managed(manager string, op metav1.ManagedFieldsOperationType, labels ...string) metav1.ManagedFieldsEntry {
	fields := map[string]any{}
	for _, l := range labels {
		fields["f:"+l] = map[string]any{}
	}
	raw, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": fields}})
	if err != nil {
		panic(err)
	}
	entry := metav1.ManagedFieldsEntry{Manager: manager, Operation: op, APIVersion: "v1", FieldsType: "FieldsV1"}
	entry.FieldsV1 = metav1.NewFieldsV1(string(raw))
	return entry
}

// Every way in which a stolen token could be used, and every write that the
// daemon has to make.
func TestPolicy(t *testing.T) {
	label := func(key, value string) func(*attempt) {
		return func(a *attempt) { a.new.Labels[key] = value }
	}
	taint := func(key string, effect corev1.TaintEffect) func(*attempt) {
		return func(a *attempt) {
			a.new.Spec.Taints = append(a.new.Spec.Taints, corev1.Taint{Key: key, Value: "v", Effect: effect})
		}
	}
	extra := func(extra map[string]any) func(*attempt) {
		return func(a *attempt) { a.user()["extra"] = extra }
	}
	const (
		ownNode   = "heddle-feature-discovery may write only the Node that its pod runs on, by the pod's own token"
		noStatus  = "heddle-feature-discovery may neither create nor delete a Node nor write its status"
		labelHint = "; the key of a label rule must be in the chart's config.cluster.labels, config.nodes or admissionPolicy.extraLabelKeys"
	)
	for _, tt := range []struct {
		name string
		do   func(*attempt)
		deny []string
	}{
		{name: "nothing", do: func(*attempt) {}},
		{name: "a label of heddle's", do: label("nvidia.com/gpu.product", "NVIDIA-H20")},
		{name: "a label of heddle's by pattern", do: label("nvidia.com/gpu.NVIDIA-L40S.count", "3")},
		{name: "a MIG label", do: label("nvidia.com/mig-1g.10gb.count", "7")},
		{name: "the label of a rule", do: label("ring", "ff")},
		{name: "a label by a pattern of the administrator", do: label("example.com/a.size", "1")},
		{
			name: "a label that only looks like the pattern", do: label("nvidia.com/gpu..count", "3"),
			deny: []string{"heddle-feature-discovery may not change labels nvidia.com/gpu..count" + labelHint},
		},
		{
			name: "another owner's label under the vendor's domain", do: label("nvidia.com/gpu.deploy.driver", "false"),
			deny: []string{"heddle-feature-discovery may not change labels nvidia.com/gpu.deploy.driver" + labelHint},
		},
		{
			name: "a changed label", do: label("kubernetes.io/hostname", "n2"),
			deny: []string{"heddle-feature-discovery may not change labels kubernetes.io/hostname" + labelHint},
		},
		{
			name: "a removed label that another manager holds too", do: func(a *attempt) { delete(a.new.Labels, "rack") },
			deny: []string{"heddle-feature-discovery may not change labels rack" + labelHint},
		},
		{
			name: "all labels removed", do: func(a *attempt) {
				delete(a.old.Labels, "rack") // one offender: the message's order is CEL's
				a.new.Labels = nil
			},
			deny: []string{"heddle-feature-discovery may not change labels kubernetes.io/hostname" + labelHint},
		},
		{name: "a label of a retired rule removed", do: func(a *attempt) { delete(a.new.Labels, "old.example.com/gpu.product") }},
		{
			name: "the same changed", do: label("old.example.com/gpu.product", "Y"),
			deny: []string{"heddle-feature-discovery may not change labels old.example.com/gpu.product" + labelHint},
		},
		{
			name: "a label of Kubernetes removed under forged records", do: func(a *attempt) {
				delete(a.new.Labels, "kubernetes.io/hostname")
				a.old.ManagedFields = a.old.ManagedFields[1:]
			},
			deny: []string{"heddle-feature-discovery may not change labels kubernetes.io/hostname" + labelHint},
		},
		{
			name: "a label removed without a recorded manager", do: func(a *attempt) {
				delete(a.new.Labels, "rack")
				a.old.ManagedFields = nil
			},
			deny: []string{"heddle-feature-discovery may not change labels rack" + labelHint},
		},
		{name: "our annotation", do: func(a *attempt) { a.new.Annotations[wellknown.OwnedTaints] = "[]" }},
		{
			name: "a card that an operator took out", do: func(a *attempt) { a.new.Annotations[wellknown.CordonedGPUs] = "GPU-a" },
			deny: []string{"heddle-feature-discovery may not change annotations heddle.dev/cordoned-gpus"},
		},
		{
			name: "another annotation", do: func(a *attempt) {
				a.new.Annotations["csi.volume.kubernetes.io/nodeid"] = "{}"
				delete(a.new.Annotations, "node.alpha.kubernetes.io/ttl")
			},
			deny: []string{"heddle-feature-discovery may not change annotations csi.volume.kubernetes.io/nodeid, node.alpha.kubernetes.io/ttl"},
		},
		{name: "a taint of heddle's", do: taint("nvidia.com/gpu.product", corev1.TaintEffectNoSchedule)},
		{name: "a taint of heddle's removed", do: func(a *attempt) { taint("heddle.dev/node.usage", "NoExecute")(&attempt{new: a.old}) }},
		{
			name: "a taint of heddle's that evicts", do: taint("heddle.dev/node.usage", corev1.TaintEffectNoExecute),
			deny: []string{"heddle-feature-discovery may not add taints of effect NoExecute"},
		},
		{
			name: "another taint", do: taint("example.com/x", corev1.TaintEffectNoSchedule),
			deny: []string{"heddle-feature-discovery may not change taints example.com/x"},
		},
		{
			name: "another taint removed", do: func(a *attempt) { a.new.Spec.Taints = nil },
			deny: []string{"heddle-feature-discovery may not change taints node.kubernetes.io/unreachable"},
		},
		{
			name: "cordoned", do: func(a *attempt) { a.new.Spec.Unschedulable = true },
			deny: []string{"heddle-feature-discovery may not change spec.unschedulable"},
		},
		{
			name: "other fields", do: func(a *attempt) {
				a.new.Spec.ProviderID, a.new.Finalizers = "", []string{"example.com/stay"}
			},
			deny: []string{"heddle-feature-discovery may not change metadata.finalizers, spec.providerID"},
		},
		{name: "what the API server writes", do: func(a *attempt) {
			a.new.ResourceVersion, a.new.Generation, a.new.ManagedFields = "8", 2, nil
		}},
		{name: "another Node", do: func(a *attempt) { a.request["name"] = "n2" }, deny: []string{ownNode}},
		{name: "a token without a node", do: extra(map[string]any{}), deny: []string{ownNode}},
		{name: "a token without anything", do: func(a *attempt) { delete(a.user(), "extra") }, deny: []string{ownNode}},
		{name: "a token with two nodes", do: extra(map[string]any{nodeNameKey: []string{"n1", "n2"}}), deny: []string{ownNode}},
		{name: "the status", do: func(a *attempt) { a.request["subResource"] = "status" }, deny: []string{noStatus}},
		{
			name: "a new Node", do: func(a *attempt) { a.request["operation"], a.old, a.new = "CREATE", nil, &corev1.Node{} },
			deny: []string{noStatus},
		},
		{
			name: "a Node deleted", do: func(a *attempt) {
				a.request["operation"], a.old, a.new = "DELETE", &corev1.Node{}, nil
			},
			deny: []string{noStatus},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &attempt{old: node(), new: node(), request: updating("n1", "heddle-feature-discovery", "n1")}
			tt.do(a)
			p := loadPolicy(t, "--set", "config.cluster.labels[0].key=ring", "--set", "config.cluster.labels[0].value=node.name",
				"--set", "admissionPolicy.extraLabelKeys={example.com/*.size}")
			if !p.matches(t, a) {
				t.Fatal("the policy does not look at the request")
			}
			if diff := cmp.Diff(tt.deny, p.denials(t, a)); diff != "" {
				t.Errorf("denials (-want +got):\n%s", diff)
			}
			a.user()["username"] = "system:node:n1"
			if p.matches(t, a) {
				t.Error("the policy looks at requests of others")
			}
		})
	}
}

// policy evaluates the rendered policy as the API server does: variables
// lazily, in order, an error in a validation being a denial.
type policy struct {
	env  *cel.Env
	spec *admissionv1.ValidatingAdmissionPolicySpec
}

func loadPolicy(t *testing.T, args ...string) *policy {
	t.Helper()
	return policyOf(t, render(t, args...), "heddle-feature-discovery")
}

func policyOf(t *testing.T, objects rendered, daemon string) *policy {
	t.Helper()
	env, err := cel.NewEnv(
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.OptionalTypes(),
		ext.Strings(ext.StringsVersion(2)),
		cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
		cel.Variable("variables", cel.DynType),
	)
	if err != nil {
		t.Fatal(err)
	}
	object := get[*admissionv1.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy/"+daemon)
	binding := get[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects, "ValidatingAdmissionPolicyBinding/"+daemon)
	if *object.Spec.FailurePolicy != admissionv1.Fail || binding.Spec.PolicyName != object.Name ||
		!slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the policy can be passed by: failurePolicy %v, binding %v", *object.Spec.FailurePolicy, binding.Spec)
	}
	// The API server looks parameters up before matchConditions. Without the
	// object, parameterNotFoundAction Deny rejects every write to every Node by
	// anyone, heartbeats of kubelets too; Allow would let ours pass unchecked.
	if object.Spec.ParamKind != nil || binding.Spec.ParamRef != nil {
		t.Errorf("the policy depends on another object: paramKind %v, paramRef %v", object.Spec.ParamKind, binding.Spec.ParamRef)
	}
	return &policy{env: env, spec: &object.Spec}
}

// plain is an object as CEL sees it: its JSON, null if there is none.
func plain[T any](t *testing.T, object *T) map[string]any {
	t.Helper()
	if object == nil {
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// withVariables adds the policy's variables to a request.
func (p *policy) withVariables(in map[string]any) map[string]any {
	variables := map[string]any{}
	in["variables"] = variables
	for _, v := range p.spec.Variables {
		// One that fails stays absent, and fails the tests that need it.
		if value, err := p.eval(v.Expression, in); err == nil {
			variables[v.Name] = value.Value()
		}
	}
	return in
}

func (p *policy) eval(expression string, in map[string]any) (ref.Val, error) {
	ast, issues := p.env.Compile(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	program, err := p.env.Program(ast, cel.CostLimit(callLimit))
	if err != nil {
		return nil, err
	}
	value, _, err := program.Eval(in)
	if err != nil {
		return nil, err
	}
	return value, nil
}

func (p *policy) matches(t *testing.T, a *attempt) bool {
	t.Helper()
	return p.matched(a.in(t, p))
}

func (p *policy) matched(in map[string]any) bool {
	for _, c := range p.spec.MatchConditions {
		if ok, err := p.eval(c.Expression, in); err != nil || ok != types.True {
			return false
		}
	}
	return true
}

// denials are the messages of all validations that fail.
func (p *policy) denials(t *testing.T, a *attempt) []string {
	t.Helper()
	return p.denied(t, a.in(t, p))
}

func (p *policy) denied(t *testing.T, in map[string]any) []string {
	t.Helper()
	var messages []string
	for _, v := range p.spec.Validations {
		ok, err := p.eval(v.Expression, in)
		switch {
		case err != nil:
			messages = append(messages, fmt.Sprintf("%s: %v", v.Expression, err))
		case ok != types.True && v.MessageExpression != "":
			message, err := p.eval(v.MessageExpression, in)
			if err != nil {
				t.Errorf("message of %q: %v", v.Expression, err)
			}
			messages = append(messages, fmt.Sprint(message.Value()))
		case ok != types.True:
			messages = append(messages, v.Message)
		}
	}
	return messages
}
