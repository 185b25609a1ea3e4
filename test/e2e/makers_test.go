//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// TestMakersFromTheChart runs the documented commands on a node with a maker's GPUs, each with the check that the
// document prints: helm install with gpuDevice.sGPUHybridMode=true alone shares all GPUs; then the documented ConfigMap
// names the nodes that share their GPUs: another one first, then this one. No resource or label of the node is another
// maker's.
func TestMakersFromTheChart(t *testing.T) {
	for _, m := range []maker{
		{"metax-tech.com", "metax-c500-box", "metax/device-config.yaml", 64, "nvidia.com"},
		{"nvidia.com", "dgx-h100", "device-config.yaml", 79, "metax-tech.com"},
	} {
		t.Run(m.vendor, func(t *testing.T) {
			m.fromTheChart(t, ownBed(t, cluster.Options{Name: "e2e-" + m.machine}))
		})
	}
}

// maker is a node of eight GPUs with so many GiB each, and its documented configuration.
type maker struct {
	vendor, machine, config string
	gib                     int64
	other                   string
}

func (m *maker) resource(name string) corev1.ResourceName {
	return corev1.ResourceName(m.vendor + "/" + name)
}

func (m *maker) fromTheChart(t *testing.T, b *bed) {
	ctx := t.Context()
	if err := b.installer.Image(ctx, b.Cluster, "heddle", nodeName); err != nil {
		t.Fatal(err)
	}
	dump, nodes := b.path("test/machines/"+m.machine+".json"), filepath.Join(b.Dir(), m.machine)
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	b.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	b.kubectl(t, "-n", suite, "create", "configmap", "maker", "--from-file=machine.json="+dump)
	t.Cleanup(func() { b.kubectlAfter(t, "-n", suite, "delete", "configmap", "maker") })
	var only []string
	for _, of := range []string{"gpuLabel", "gpuDevice"} {
		affinity := map[string]any{"nodeAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
			"nodeSelectorTerms": []any{map[string]any{"matchExpressions": []any{map[string]any{
				"key": corev1.LabelHostname, "operator": "In", "values": []string{b.Node()},
			}}}},
		}}}
		text, err := json.Marshal(affinity)
		if err != nil {
			t.Fatal(err)
		}
		only = append(only, "--set-json", of+".affinity="+string(text), "--set", of+".machineConfigMap=maker")
	}
	only = append(only, "--set", "gpuDevice.replayDevices="+nodes)
	if err := b.installer.Chart(ctx, b.Cluster, append(only, "--set", "gpuDevice.sGPUHybridMode=true")...); err != nil {
		t.Fatal(err)
	}
	offered := func() string {
		var all []string
		for name, n := range b.node(t, b.Node()).Status.Allocatable {
			if maker, what, ok := strings.Cut(string(name), "/"); ok && maker != "rdma" && !n.IsZero() {
				all = append(all, fmt.Sprintf("%s/%s: %s", maker, what, n.String()))
			}
		}
		return strings.Join(all, ", ")
	}
	offers := func(want map[corev1.ResourceName]int64) {
		t.Helper()
		eventually(t, func() string {
			n := b.node(t, b.Node())
			for name, want := range want {
				if got := n.Status.Allocatable[name]; got.Value() != want {
					return fmt.Sprintf("%s: %s, want %d; the node offers %s", name, got.String(), want, offered())
				}
			}
			if n.Labels[m.vendor+"/gpu.product"] == "" {
				return "no label " + m.vendor + "/gpu.product"
			}
			return ""
		})
	}
	shared := map[corev1.ResourceName]int64{
		m.resource("gpu"): 0, m.resource("sgpu"): 8 * 16, m.resource("vcore"): 8 * 100, m.resource("vmemory"): 8 * m.gib,
	}
	offers(shared)
	m.check(t, b, "sgpu", fmt.Sprint(8*16))
	documented, err := os.ReadFile(b.example(m.config))
	if err != nil {
		t.Fatal(err)
	}
	b.applied(t, string(documented)) // It shares the GPUs of another node.
	offers(map[corev1.ResourceName]int64{m.resource("gpu"): 8})
	m.check(t, b, "gpu", "8")
	b.applied(t, strings.ReplaceAll(string(documented), "sample-node1", b.Node()))
	offers(shared)
	m.check(t, b, "sgpu", fmt.Sprint(8*16))
	n := b.node(t, b.Node())
	for key := range n.Labels {
		if strings.HasPrefix(key, m.other+"/") {
			t.Errorf("label %s", key)
		}
	}
	for name, count := range n.Status.Allocatable {
		if strings.HasPrefix(string(name), m.other+"/") && !count.IsZero() {
			t.Errorf("the node offers %s %s", count.String(), name)
		}
	}
}

// check runs the documented check of the node's allocatable resources with a prefix.
func (m *maker) check(t *testing.T, b *bed, resource, want string) {
	t.Helper()
	check := "kubectl get node " + b.Node() +
		` -o json | jq '.status.allocatable | with_entries(select(.key | startswith("` + m.vendor + "/" + resource + `")))'`
	if diff := cmp.Diff("{\n  \""+m.vendor+"/"+resource+"\": \""+want+"\"\n}\n", b.documented(t, check)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", check, diff)
	}
}
