//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/topo/worker"
)

// withToken is a client with a token of a service account: bound to a pod, as the
// kubelet's are, or to nothing.
func (b *bed) withToken(t *testing.T, account string, pod *corev1.Pod) *rest.RESTClient {
	t.Helper()
	request := &authv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	token, err := b.client.CoreV1().ServiceAccounts(suite).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(b.config)
	config.BearerToken = token.Status.Token
	client, err := kube.ClientFor(config, "e2e")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const nodeTopologies = "/apis/topology.heddle.dev/v1alpha1/nodetopologies/"

// patch is a merge patch of any path.
func patch(ctx context.Context, c rest.Interface, path, body string) error {
	if at, sub, ok := strings.Cut(path, "#"); ok {
		path = at + "/" + sub
	}
	return c.Patch(types.MergePatchType).AbsPath(path).Body([]byte(body)).Do(ctx).Error()
}

// attempt is a write, and the API server's answer: "" lets it through.
type attempt struct {
	name   string
	do     func(ctx context.Context) error
	reject string
}

func try(t *testing.T, all []attempt) {
	t.Helper()
	for _, a := range all {
		err := a.do(t.Context())
		switch {
		case a.reject == "" && err != nil:
			t.Errorf("%s: refused: %v", a.name, err)
		case a.reject != "" && (err == nil || !strings.Contains(err.Error(), a.reject)):
			t.Errorf("%s: %v, want %q", a.name, err, a.reject)
		}
	}
}

func stepWorkerToken(t *testing.T, b *topoChart) {
	pods := b.pods(t, topoWorkerName)
	own := b.withToken(t, topoWorkerName, &pods[0])
	loose := b.withToken(t, topoWorkerName, nil)
	node := b.Node()
	spec := &v1alpha1.NodeTopologySpec{Path: []string{"switchbox-9", "dragonfly-9"}, PathSource: v1alpha1.SourceStatic}
	apply := func(c rest.Interface, as string) func(context.Context) error {
		uid := b.node(t, as).UID
		return func(ctx context.Context) error {
			_, err := worker.NewPublisher(c, as).Apply(ctx, uid, spec)
			return err
		}
	}
	beat := func(c rest.Interface, as string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := worker.NewPublisher(c, as).Beat(ctx, time.Now())
			return err
		}
	}
	edit := func(path, body string) func(context.Context) error {
		return func(ctx context.Context) error { return patch(ctx, own, path, body) }
	}
	owners := func(names ...string) string {
		var refs []string
		for _, name := range names {
			refs = append(refs, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "name": %q, "uid": %q}`, name, b.node(t, name).UID))
		}
		return `{"metadata": {"ownerReferences": [` + strings.Join(refs, ",") + `]}}`
	}
	const (
		policy   = "ValidatingAdmissionPolicy 'heddle-topo-worker'"
		rbac     = "is forbidden: User \"system:serviceaccount:heddle-system:heddle-topo-worker\" cannot "
		oneOwner = "a NodeTopology has one owner, the Node of its name"
	)
	try(t, []attempt{
		{"its own report", apply(own, node), ""},
		{"its own heartbeat", beat(own, node), ""},
		{"another node's report", apply(own, "chart-a"), policy},
		{"another node's heartbeat", beat(own, "chart-a"), policy},
		{"its own report by a token without a pod", apply(loose, node), policy},
		{"another owner", edit(nodeTopologies+node, owners("chart-a")), oneOwner},
		{"two owners", edit(nodeTopologies+node, owners(node, "chart-a")), oneOwner},
		{"no owner", edit(nodeTopologies+node, `{"metadata": {"ownerReferences": null}}`), oneOwner},
		{"its own report deleted", func(ctx context.Context) error {
			return own.Delete().AbsPath(nodeTopologies + node).Do(ctx).Error()
		}, rbac + "delete"},
		{"its own Node's label", edit("/api/v1/nodes/"+node, `{"metadata": {"labels": {"`+leafLabel+`": "x"}}}`), rbac + "patch"},
		{"all reports read", func(ctx context.Context) error {
			return own.Get().AbsPath(strings.TrimSuffix(nodeTopologies, "/")).Do(ctx).Error()
		}, rbac + "list"},
		{"Secrets read", func(ctx context.Context) error {
			return own.Get().AbsPath("/api/v1/namespaces/" + suite + "/secrets").Do(ctx).Error()
		}, rbac + "list"},
	})
}

func stepMasterToken(t *testing.T, b *topoChart) {
	pods := b.pods(t, topoMasterName)
	master := b.withToken(t, topoMasterName, &pods[0])
	edit := func(path, body string) func(context.Context) error {
		return func(ctx context.Context) error { return patch(ctx, master, path, body) }
	}
	node := "/api/v1/nodes/" + b.Node()
	label := func(key string) string { return `{"metadata": {"labels": {"` + key + `": "x"}}}` }
	condition := func(kind string) func(context.Context) error {
		return func(ctx context.Context) error {
			body := `{"status": {"conditions": [{"type": "` + kind + `", "status": "Unknown", "reason": "Test"}]}}`
			return master.Patch(types.StrategicMergePatchType).AbsPath(node, "status").Body([]byte(body)).Do(ctx).Error()
		}
	}
	event := func(namespace, kind, component string) func(context.Context) error {
		return func(ctx context.Context) error {
			return master.Post().Namespace(namespace).Resource("events").Body(&corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: "token-", Namespace: namespace},
				InvolvedObject: corev1.ObjectReference{Kind: kind, Name: b.Node(), Namespace: map[bool]string{true: namespace}[kind == "Pod"]},
				Reason:         "Test", Source: corev1.EventSource{Component: component},
			}).Do(ctx).Error()
		}
	}
	const (
		policy = "ValidatingAdmissionPolicy 'heddle-topo-master'"
		walks  = "ValidatingAdmissionPolicy 'heddle-topo-master-walks'"
		events = "ValidatingAdmissionPolicy 'heddle-topo-master-events'"
		rbac   = "is forbidden: User \"system:serviceaccount:heddle-system:heddle-topo-master\" cannot "
	)
	try(t, []attempt{
		{"a label", edit(node, label("heddle.dev/topology.rack")), ""},
		{"the label removed", edit(node, `{"metadata": {"labels": {"heddle.dev/topology.rack": null}}}`), ""},
		{"who walks", edit(nodeTopologies+b.Node()+"#status", `{"status": {"walk": ["leaf-x"]}}`), ""},
		{"what a GPU is", edit(node, label("nvidia.com/gpu.product")), policy},
		{"a role", edit(node, label("node-role.kubernetes.io/control-plane")), policy},
		{"a label of the kubelet taken away", edit(node, `{"metadata": {"labels": {"kubernetes.io/hostname": null}}}`), policy},
		{"an annotation", edit(node, `{"metadata": {"annotations": {"heddle.dev/cordoned-gpus": "0"}}}`), policy},
		{"a taint", edit(node, `{"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}}`), policy},
		{"cordoned", edit(node, `{"spec": {"unschedulable": true}}`), policy},
		{"capacity", edit(node+"#status", `{"status": {"capacity": {"nvidia.com/gpu": "99"}}}`), policy},
		{"the fabric's condition", condition("HeddleFabric"), ""},
		{"another condition", condition("Ready"), "may not change conditions Ready"},
		{"a label by the status", edit(node+"#status", label("nvidia.com/gpu.product")), policy},
		{"what is known of cables", edit(nodeTopologies+b.Node()+"#status", `{"status": {"leaf": "x", "findingCount": 0}}`), ""},
		{"a heartbeat", edit(nodeTopologies+b.Node()+"#status", `{"status": {"heartbeatTime": "2026-01-01T00:00:00Z"}}`), walks},
		{"an Event about the Node", event("default", "Node", "heddle-topo-master"), ""},
		{"an Event as the kubelet", event("default", "Node", "kubelet"), events},
		{"an Event about a pod", event("default", "Pod", "heddle-topo-master"), events},
		{"an Event elsewhere", event(suite, "Node", "heddle-topo-master"), rbac + "create"},
		{"a Node deleted", func(ctx context.Context) error { return master.Delete().AbsPath(node).Do(ctx).Error() }, rbac + "delete"},
		{"a report", edit(nodeTopologies+b.Node(), `{"spec": {"path": ["x"]}}`), rbac + "patch"},
		{"a HyperNode made while that export is off", func(ctx context.Context) error {
			return master.Post().AbsPath("/apis/topology.volcano.sh/v1alpha1/hypernodes").Body([]byte(`{}`)).Do(ctx).Error()
		}, rbac + "create"},
		{"a pod", func(ctx context.Context) error {
			return master.Delete().AbsPath("/api/v1/namespaces/" + suite + "/pods/" + pods[0].Name).Do(ctx).Error()
		}, rbac + "delete"},
		{"another lease", edit("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+b.Node(), `{}`), rbac + "patch"},
	})
}

// stepValidation applies what is no report, as an administrator may.
func stepValidation(t *testing.T, b *topoChart) {
	rail := func(change string) string {
		return `{"spec": {"rails": [{"hca": "mlx5_0", "id": "0000:18:00.0", "role": "fabric", "rail": 0, "port": 1, "linkState": "Active"` + change + `}]}}`
	}
	long := strings.Repeat("x", 129)
	config := rest.CopyConfig(b.config)
	config.WarningHandler = rest.NoWarnings{} // A change repeats a field; the last one counts.
	admin, err := kube.ClientFor(config, "e2e")
	if err != nil {
		t.Fatal(err)
	}
	var all []attempt
	for _, a := range [][3]string{
		{"a rail", rail(""), ""},
		{"a rail beyond the last", rail(`, "rail": 128`), "spec.rails[0].rail"},
		{"a confidence over 100", rail(`, "confidence": 101`), "spec.rails[0].confidence"},
		{"a link state of its own", rail(`, "linkState": "Sideways"`), "spec.rails[0].linkState"},
		{"a source that is none", rail(`, "source": "rumor"`), "spec.rails[0].source"},
		{"a switch without ID", rail(`, "switch": {"name": "x"}`), "spec.rails[0].switch.id"},
		{"a long switch ID", rail(`, "switch": {"id": "` + long + `"}`), "spec.rails[0].switch.id"},
		{"no port", `{"spec": {"rails": [{"hca": "mlx5_0", "id": "x", "role": "fabric", "rail": 0, "linkState": "Active"}]}}`, "spec.rails[0].port"},
		{"a text for a number", rail(`, "port": "1"`), "spec.rails[0].port"},
		{"129 rails", `{"spec": {"rails": [` + strings.TrimSuffix(strings.Repeat(`{},`, 129), ",") + `]}}`, "spec.rails"},
		{"a deep path", `{"spec": {"path": ["1", "2", "3", "4", "5", "6", "7", "8", "9"]}}`, "spec.path"},
		{"GPUs of minus one", `{"spec": {"accelerators": [{"product": "x", "count": -1}]}}`, "spec.accelerators[0].count"},
	} {
		all = append(all, attempt{a[0], func(ctx context.Context) error {
			return patch(ctx, admin, nodeTopologies+"chart-b", a[1])
		}, a[2]})
	}
	try(t, all)
}
