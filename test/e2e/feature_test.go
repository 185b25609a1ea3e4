//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/test/install"
)

const (
	daemon = "heddle-feature-discovery"
	suite  = "heddle-system"
)

// TestFeatureDiscoveryFromTheChart is the life of the daemon on a real node,
// step by step; each step stands on those before.
func TestFeatureDiscoveryFromTheChart(t *testing.T) {
	b := shared(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := b.Kubectl(context.WithoutCancel(t.Context()), "-n", suite, "logs", "ds/"+daemon, "--tail=40")
			t.Logf("the daemon's log:\n%s", out)
		}
	})
	b.installChart(t)
	b.waitLabel(t, "example.com/rack", "r1")
	for _, step := range []struct {
		name string
		run  func(*testing.T, *bed)
	}{
		{"a bad configuration keeps the last good one and reports it", stepBadConfig},
		{"a good configuration is taken without a restart", stepGoodConfig},
		{"the token may write its own Node and our keys only", stepPolicy},
		{"cleanup takes all away", stepCleanup},
	} {
		if !t.Run(tt(step.name), func(t *testing.T) { step.run(t, b) }) {
			return
		}
	}
}

func tt(name string) string { return strings.ReplaceAll(name, " ", "-") }

// chartValues are the values of the first installation.
const chartValues = `
config:
  cluster: {preset: scheme, usage: hybrid}
  nodes:
  - {nodeName: node1, usage: training, labels: [{key: example.com/rack, value: "'r1'"}]}
gpuLabel:
  machineConfigMap: machine
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: type, operator: NotIn, values: [kwok]}]
`

func (b *bed) installChart(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := b.installer.Image(ctx, b.Cluster, nodeName); err != nil {
		t.Fatal(err)
	}
	b.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	b.kubectl(t, "-n", suite, "create", "configmap", "machine", "--from-file=machine.json="+b.path("test/machines/dgx-h100.json"))
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(chartValues), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.installer.Chart(ctx, b.Cluster, "--values", values, "--set", "gpuDevice.enabled=false"); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) path(file string) string { return filepath.Join(b.installer.Root, file) }

// waitLabel waits until the real node's label is value; "" means absent.
func (b *bed) waitLabel(t *testing.T, key, value string) {
	t.Helper()
	eventually(t, func() string {
		if got := b.node(t, b.Node()).Labels[key]; got != value {
			return fmt.Sprintf("label %s is %q, want %q", key, got, value)
		}
		return ""
	})
}

func (b *bed) restarts(t *testing.T) (n int32) {
	t.Helper()
	pods, err := b.client.CoreV1().Pods(suite).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + daemon})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("pods of the daemon: %d, %v", len(pods.Items), err)
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n
}

// nodesConfig replaces the key nodes-config of the mounted ConfigMap.
func (b *bed) nodesConfig(t *testing.T, text string) {
	t.Helper()
	patch := fmt.Sprintf(`{"data":{"nodes-config":%q}}`, text)
	b.kubectl(t, "-n", suite, "patch", "configmap", "heddle-device-config", "--type=merge", "-p", patch)
}

func stepBadConfig(t *testing.T, b *bed) {
	b.nodesConfig(t, "- nodeName: node1\n  usage: training\n  usgae: inference\n")
	eventually(t, func() string {
		events := b.kubectl(t, "get", "events", "--field-selector=involvedObject.name="+b.Node()+",reason=InvalidConfiguration",
			"-o", "jsonpath={.items[*].message}")
		if !strings.Contains(events, "usgae") || !strings.Contains(events, "nodes-config:3:") {
			return fmt.Sprintf("events: %q", events)
		}
		return ""
	})
	if got := b.node(t, b.Node()).Labels["heddle.dev/node.usage"]; got != "training" {
		t.Errorf("node.usage is %q: the last good configuration is not kept", got)
	}
	metrics, err := b.NodeExec(t.Context(), "busybox", "wget", "-qO-", "http://127.0.0.1:9101/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(metrics, "\nheddle_config_valid{daemon=\"heddle-feature-discovery\"} 0\n") {
		t.Errorf("heddle_config_valid is not 0 in:\n%s", metrics)
	}
}

func stepGoodConfig(t *testing.T, b *bed) {
	b.nodesConfig(t, "- nodeName: node1\n  usage: inference\n")
	b.waitLabel(t, "heddle.dev/node.usage", "inference")
	b.waitLabel(t, "example.com/rack", "")
	if n := b.restarts(t); n != 0 {
		t.Errorf("the daemon restarted %d times", n)
	}
}

// stepPolicy writes as the daemon's service account would, with the claims
// that a token of a pod on node1 has.
func stepPolicy(t *testing.T, b *bed) {
	b.newNode(t, "neighbor")
	as := func(extra map[string][]string) kubernetes.Interface {
		config := rest.CopyConfig(b.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + suite + ":" + daemon, Extra: extra}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	const claim = "authentication.kubernetes.io/node-name"
	own := as(map[string][]string{claim: {b.Node()}})
	for _, tt := range []struct {
		name    string
		client  kubernetes.Interface
		node    string
		patch   string
		allowed bool
	}{
		{"our label on the own node", own, b.Node(), `{"metadata":{"labels":{"nvidia.com/gpu.family":"hopper"}}}`, true},
		{"our taint on the own node", own, b.Node(), `{"spec":{"taints":[{"key":"heddle.dev/node.usage","value":"inference","effect":"NoSchedule"},{"key":"nvidia.com/gpu.product","value":"x","effect":"NoSchedule"}]}}`, true},
		{"a foreign label on the own node", own, b.Node(), `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, false},
		{"a foreign taint on the own node", own, b.Node(), `{"spec":{"taints":[{"key":"example.com/x","effect":"NoExecute"}]}}`, false},
		{"another part of the own node", own, b.Node(), `{"spec":{"unschedulable":true}}`, false},
		{"our label on another node", own, "neighbor", `{"metadata":{"labels":{"nvidia.com/gpu.count":"9"}}}`, false},
		{"a token without a node", as(nil), b.Node(), `{"metadata":{"labels":{"nvidia.com/gpu.count":"9"}}}`, false},
	} {
		_, err := tt.client.CoreV1().Nodes().Patch(t.Context(), tt.node, types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{})
		if tt.allowed && err != nil {
			t.Errorf("%s: rejected: %v", tt.name, err)
		}
		if !tt.allowed && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: not rejected: %v", tt.name, err)
		}
	}
	// The policy is in force only if a rejection came from it.
	_, err := own.CoreV1().Nodes().Patch(t.Context(), "neighbor", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"nvidia.com/gpu.count":"9"}}}`), metav1.PatchOptions{})
	if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		t.Errorf("rejected by something else: %v", err)
	}
}

// stepCleanup leaves the shared node as the test found it.
func stepCleanup(t *testing.T, b *bed) {
	release := strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q"))
	// Helm 4 applies server-side: the ConfigMap that the test edited is a conflict.
	b.helm(t, "upgrade", release, "deploy/helm/heddle", "-n", suite, "--reuse-values", "--wait", "--timeout", "2m", "--force-conflicts",
		"--set", "gpuLabel.cleanup=true", "--set", "image.repository="+install.Registry, "--set", "image.tag="+install.Tag)
	b.waitLabel(t, "nvidia.com/gpu.product", "")
	b.helm(t, "uninstall", release, "-n", suite, "--wait", "--no-hooks")
}

// kubectlAfter runs kubectl in a cleanup, when the test's context is over.
func (b *bed) kubectlAfter(t *testing.T, args ...string) {
	t.Helper()
	if _, err := b.Kubectl(context.WithoutCancel(t.Context()), args...); err != nil {
		t.Error(err)
	}
}

func (b *bed) helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.installer.Helm(t.Context(), b.Cluster, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
