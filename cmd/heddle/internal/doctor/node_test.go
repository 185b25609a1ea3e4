package doctor

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
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
	for _, tt := range []struct {
		name string
		node func(*corev1.Node)
		pods []corev1.Pod
		want []string
	}{
		{"nothing is wrong", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "256"), quantities("8", "256")
		}, []corev1.Pod{discovery}, nil},
		{"no device plugin", func(*corev1.Node) {}, []corev1.Pod{discovery}, nil},
		{"unhealthy and empty", func(n *corev1.Node) {
			n.Status.Capacity, n.Status.Allocatable = quantities("8", "0"), quantities("7", "0")
		}, []corev1.Pod{discovery}, []string{
			"resource nvidia.com/gpu: has allocatable 7 of 8: the others are unhealthy",
		}},
		{"no pod of feature-discovery", func(n *corev1.Node) {
			n.ManagedFields, n.Labels = nil, nil
		}, nil, []string{"heddle-feature-discovery: has no pod here, so the Node has none of heddle's labels"}},
		{"not ready", func(n *corev1.Node) {
			n.Labels = nil
			n.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "no CNI",
			}}
		}, []corev1.Pod{discovery}, []string{"Node gpu-1: is not Ready: KubeletNotReady: no CNI"}},
		{"labels that a run by hand wrote", func(*corev1.Node) {}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := h20Node()
			tt.node(node)
			dir := directory(t, map[string]string{"version": "v1", "cluster-config": ""})
			out, err := doctor(t, "--node", "gpu-1", "--config", dir, "--kubeconfig", serve(t, node, tt.pods))
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

func TestNodesWithOneHostname(t *testing.T) {
	api := apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "ConfigMap", Plural: "configmaps"})
	for name, hostname := range map[string]string{"gpu-1": "image", "gpu-2": "image", "gpu-3": "gpu-3"} {
		node := h20Node()
		node.Name, node.Labels[corev1.LabelHostname] = name, hostname
		api.Put("nodes", node)
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	for node, want := range map[string]bool{"gpu-1": true, "gpu-3": false} {
		out, _ := doctor(t, "--node", node, "--kubeconfig", clitest.Kubeconfig(t, server.URL))
		if strings.Contains(out, "shares kubernetes.io/hostname image with gpu-2: ") != want ||
			strings.Contains(out, "shares kubernetes.io/hostname") != want {
			t.Errorf("%s:\n%s", node, out)
		}
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
