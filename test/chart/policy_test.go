package chart

import (
	gocmp "cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/golden"
)

const (
	nodeNameKey = "authentication.kubernetes.io/node-name"
	// What the API server lets one expression cost: PerCallLimit in
	// k8s.io/apiserver/pkg/apis/cel.
	callLimit = 1_000_000
	// patchesNodes is HAMi's scheduler, which has the permission to patch any Node.
	patchesNodes = "system:serviceaccount:hami:s"
)

// write is a request to write an object; old or new is nil where it is made or
// deleted.
type write[T any] struct {
	old, new *T
	request  map[string]any
	// resource is a HyperNode's, a NodeTopology's or that of the core group, by the type of the object, unless it is set.
	resource metav1.GroupResource
}

// asked reports whether the API server asks a policy about a request: its rules name the resource and the operation.
func (w *write[T]) asked(p *policy) bool {
	of := w.resource
	if of.Resource == "" {
		switch any(w.new).(type) {
		case *v1alpha1.NodeTopology:
			of = metav1.GroupResource{Group: v1alpha1.GroupVersion().Group, Resource: "nodetopologies"}
		case *metav1.PartialObjectMetadata:
			of = metav1.GroupResource{Group: "topology.volcano.sh", Resource: "hypernodes"}
		default:
			of.Resource = strings.ToLower(reflect.TypeFor[T]().Name()) + "s"
		}
	}
	if sub, _ := w.request["subResource"].(string); sub != "" {
		of.Resource += "/" + sub
	}
	operation := admissionv1.OperationType(w.request["operation"].(string))
	return slices.ContainsFunc(p.spec.MatchConstraints.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, of.Group) && slices.Contains(r.Resources, of.Resource) && slices.Contains(r.Operations, operation)
	})
}

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
	in := map[string]any{"object": nil, "oldObject": nil, "request": w.request, "authorizer": w.user()["username"] == patchesNodes}
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

// try is a write that a stolen token could make, or that a daemon has to make.
type try[T any] struct {
	name string
	do   func(*write[T])
}

// checkPolicy compares the results of a policy with a file of testdata, which has a line for each write.
// The policy must not look at the same writes by others.
func checkPolicy[T any](t *testing.T, p *policy, name string, base func() *write[T], tries []try[T]) {
	t.Helper()
	var out strings.Builder
	for _, try := range tries {
		w := base()
		try.do(w)
		result := "not looked at"
		if in := w.in(t, p); w.asked(p) && p.matched(in) {
			result = gocmp.Or(strings.Join(p.denied(t, in), "; "), "allowed")
		}
		fmt.Fprintf(&out, "%s: %s\n", try.name, result)
		for _, other := range []string{"system:node:n1", "system:serviceaccount:other:heddle-topo-worker"} {
			if w.user()["username"] = other; !strings.HasSuffix(name, "shares") && p.matched(w.in(t, p)) {
				t.Errorf("%s: the policy looks at requests of %s", try.name, other)
			}
		}
	}
	golden.Compare(t, filepath.Join("testdata", "policies", name+".txt"), out.String(), *update)
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
		cel.Variable("variables", cel.DynType), cel.Variable("authorizer", cel.BoolType),
		authorizer("group", ""), authorizer("resource", "nodes"), authorizer("check", "patch"),
		cel.Function("allowed", cel.MemberOverload("allowed", []*cel.Type{cel.BoolType}, cel.BoolType,
			cel.UnaryBinding(func(may ref.Val) ref.Val { return may }))),
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

// authorizer is a step of the question whether the user may patch Nodes, the only one that policies ask.
func authorizer(step, of string) cel.EnvOption {
	return cel.Function(step, cel.MemberOverload(step, []*cel.Type{cel.BoolType, cel.StringType}, cel.BoolType,
		cel.BinaryBinding(func(may, asked ref.Val) ref.Val { return may.(types.Bool) && types.Bool(asked == types.String(of)) })))
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

func (p *policy) matched(in map[string]any) bool {
	for _, c := range p.spec.MatchConditions {
		if ok, err := p.eval(c.Expression, in); err != nil || ok != types.True {
			return false
		}
	}
	return true
}

// inOrder sorts the names that a message ends with: CEL gives the keys of a map in any order.
func inOrder(message string) string {
	names := strings.Split(message, ", ")
	at := strings.LastIndex(names[0], " ") + 1
	start := names[0][:at]
	names[0] = names[0][at:]
	slices.Sort(names)
	return start + strings.Join(names, ", ")
}

// denied are the messages of all validations that fail.
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
			messages = append(messages, inOrder(fmt.Sprint(message.Value())))
		case ok != types.True:
			messages = append(messages, v.Message)
		}
	}
	return messages
}
