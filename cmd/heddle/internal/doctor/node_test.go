package doctor

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

func TestNodeThroughTheAPI(t *testing.T) {
	quantities := func(gpu, hca string) corev1.ResourceList {
		return corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse(gpu), "rdma/hca_shared_devices_ib": resource.MustParse(hca),
		}
	}
	discovery := pod("heddle", "fd", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-feature-discovery"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	})
	plugin := pod("heddle", "dp", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app.kubernetes.io/name": "heddle-device-plugin"}
	})
	file := pod("heddle", "fd", func(p *corev1.Pod) {
		p.Labels, p.Status = discovery.Labels, discovery.Status
		p.Spec.Containers = []corev1.Container{{Args: []string{"--output-file=/features.d/heddle"}}}
	})
	for _, tt := range []struct {
		name      string
		node      func(*corev1.Node)
		pods      []corev1.Pod
		elsewhere []corev1.Pod
		config    string
		want      []string
	}{
		{"nothing is wrong", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "256"), quantities("8", "256")
		}, []corev1.Pod{discovery}, nil, "", nil},
		{"no device plugin", func(*corev1.Node) {}, []corev1.Pod{discovery}, nil, "", nil},
		{"nothing registered", func(*corev1.Node) {}, []corev1.Pod{discovery, plugin}, nil, "", []string{
			"resource nvidia.com/gpu: is not advertised, though the Node's labels count 8 devices",
			"resource rdma/hca_shared_devices_ib: is not advertised, though the Node's labels count 4 devices",
		}},
		{"unhealthy and empty", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "0"), quantities("7", "0")
		}, []corev1.Pod{discovery}, nil, "", []string{
			"resource nvidia.com/gpu: has allocatable 7 of 8: the others are unhealthy",
			"resource rdma/hca_shared_devices_ib: is 0, though the Node's labels count 4 devices: a device plugin registered it and lists none",
		}},
		{"no pod of feature-discovery", func(n *corev1.Node) {
			n.ManagedFields, n.Labels = nil, nil
		}, nil, nil, "", []string{"heddle-feature-discovery: has no pod here, so the Node has none of heddle's labels"}},
		{"feature-discovery is denied", func(n *corev1.Node) {
			n.ManagedFields, n.Labels = nil, nil
		}, []corev1.Pod{discovery}, nil, "", []string{"heddle-feature-discovery: runs here and has written nothing to the Node"}},
		{"not ready", func(n *corev1.Node) {
			n.Labels = nil
			n.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no CNI",
			}}
		}, []corev1.Pod{discovery}, nil, "", []string{"Node gpu-1: is not Ready: KubeletNotReady: no CNI"}},
		{"labels that a run by hand wrote", func(*corev1.Node) {}, nil, nil, "", nil},
		{"labels by way of a file", func(n *corev1.Node) { n.ManagedFields = nil }, []corev1.Pod{file}, nil, "", nil},
		{"all GPUs are shared", func(n *corev1.Node) {
			n.Labels["nvidia.com/gpu.sharing-strategy"] = "sgpu"
		}, []corev1.Pod{discovery, plugin}, nil, "mode: sgpu\nrdma: {resources: []}", []string{
			"resource nvidia.com/sgpu: is not advertised, though the Node's labels count 8 devices",
		}},
		{"all GPUs are cut, and a plugin offers none", func(n *corev1.Node) {
			n.Labels["nvidia.com/gpu.replicas"] = "0"
			n.Status.Capacity = quantities("0", "256")
			n.Status.Allocatable = n.Status.Capacity
		}, []corev1.Pod{discovery, plugin}, nil, "migStrategy: mixed", nil},
		{
			"a resource that the labels do not count", func(*corev1.Node) {},
			[]corev1.Pod{discovery, plugin},
			nil,
			"rdma: {resources: [{name: example.com/hca, selectors: {roles: [storage]}}]}",
			[]string{
				"resource nvidia.com/gpu: is not advertised, though the Node's labels count 8 devices",
			},
		},
		{"a resource of the fabric with another name", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "0"), quantities("8", "0")
		}, []corev1.Pod{discovery, plugin}, nil, "rdma: {resources: [{name: example.com/hca}]}", []string{
			"resource example.com/hca: is not advertised, though the Node's labels count 4 devices",
		}},
		{"another manager holds labels that discovery writes, and others", func(n *corev1.Node) {
			n.Labels["nvidia.com/mig-1g.10gb.count"], n.Labels["nvidia.com/gfd.timestamp"] = "7", "1"
			n.Labels["heddle.dev/node.usage"], n.Labels["nvidia.com/gpu.replicas"] = "training", "10"
			n.ManagedFields[0].FieldsV1 = labelFields("nvidia.com/gpu.product", "nvidia.com/gpu.count")
			n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
				Manager: "nfd-master", Operation: metav1.ManagedFieldsOperationUpdate,
				FieldsV1: labelFields("nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/mig-1g.10gb.count",
					"nvidia.com/gfd.timestamp", "heddle.dev/node.usage"),
			})
		}, nil, nil, "", []string{
			`label nvidia.com/gpu.replicas: nfd-master holds it with value "10"; heddle-feature-discovery leaves it to them`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := h20Node()
			tt.node(node)
			dir := directory(t, map[string]string{"version": "v1", "cluster-config": tt.config})
			out, err := doctor(t, "--node", "gpu-1", "--config", dir, "--kubeconfig", serve(t, node, tt.pods, tt.elsewhere...))
			var got []string
			lines := strings.Split(out, "\n")
			for i, line := range lines {
				if subject, ok := strings.CutPrefix(line, "problem  "); ok {
					got = append(got, subject+": "+strings.TrimSpace(lines[i+1]))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if errors.Is(err, cli.ErrFindings) != (len(tt.want) > 0) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNodeAgainstAMachine(t *testing.T) {
	node := h20Node()
	node.Labels["nvidia.com/gpu.count"] = "7"
	out, err := doctor(t, "--machine", machines+"h20-4nic.json", "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))
	if !errors.Is(err, cli.ErrFindings) || !strings.Contains(out, "nvidia.com/gpu.count") ||
		!strings.Contains(out, "+ nvidia.com/gpu.memory=97871") {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

// TestNodeLabelsChooseTheConfiguration compares a Node with its machine under
// an entry of nodes-config that the Node's labels choose.
func TestNodeLabelsChooseTheConfiguration(t *testing.T) {
	dir := directory(t, map[string]string{
		"version": "v1", "nodes-config": "- nodeSelector: {pool: inference}\n  usage: inference\n",
	})
	node := h20Node()
	args := []string{"--machine", machines + "h20-4nic.json", "--config", dir}
	out, err := doctor(t, append(args, "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))...)
	if strings.Contains(out, "node.usage") {
		t.Errorf("error %v; an entry for other Nodes holds:\n%s", err, out)
	}
	node.Labels["pool"] = "inference"
	out, err = doctor(t, append(args, "--node", "gpu-1", "--kubeconfig", serve(t, node, nil))...)
	if !strings.Contains(out, "+ heddle.dev/node.usage=inference") || strings.Contains(out, "give --node-labels") {
		t.Errorf("error %v; the Node's entry does not hold:\n%s", err, out)
	}
	if out, err = doctor(t, args...); err != nil || !strings.Contains(out, "give --node-labels") {
		t.Errorf("error %v; not reported that the Node's labels matter:\n%s", err, out)
	}
}

// labelFields is what the API server records of the owner of labels.
func labelFields(keys ...string) *metav1.FieldsV1 {
	owned := map[string]any{}
	for _, key := range keys {
		owned["f:"+key] = map[string]any{}
	}
	b, err := json.Marshal(map[string]any{"f:metadata": map[string]any{"f:labels": owned}})
	if err != nil {
		panic(err)
	}
	return metav1.NewFieldsV1(string(b))
}

// Capacity counts places on HCAs; doctor shows how many HCAs there are too.
func TestHCAsOfANode(t *testing.T) {
	node := h20Node()
	node.Status.Capacity = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("8"), "rdma/hca_shared_devices_ib": resource.MustParse("256"),
	}
	node.Status.Allocatable = node.Status.Capacity
	node.Annotations = map[string]string{"heddle.dev/hca-counts": `{"version":1,"hcas":{"rdma/hca_shared_devices_ib":4}}`}
	dir := directory(t, map[string]string{"version": "v1", "cluster-config": ""})
	out, _ := doctor(t, "--node", "gpu-1", "--config", dir, "--kubeconfig", serve(t, node, nil))
	const want = "4 HCAs, up to 64 containers each: capacity 256 counts places"
	if !strings.Contains(out, want) {
		t.Errorf("%q is not in\n%s", want, out)
	}
}
