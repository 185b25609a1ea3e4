//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/install"
)

// smokeValues install everything that heddle has: seven GPUs of the real node are exclusive,
// one is shared(t). There is no DNS, so that the scheduler asks for the map by an address.
const smokeValues = `
config:
  cluster: {preset: scheme, usage: hybrid}
  nodes: [{nodeName: node1, usage: training, mode: sgpu, sgpu: {gpus: [7]}}]
gpuLabel:
  machineConfigMap: smoke
  affinity: &real
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
gpuDevice: {machineConfigMap: smoke, affinity: *real}
topoDiscovery:
  enabled: true
  worker: {machineConfigMap: smoke, affinity: *real}
  master: {replicas: 1, affinity: *real}
gpuScheduler:
  enabled: true
  replicas: 1
  assign: gpu-pods
  affinity: *real
  map: {address: "http://` + smokeMapIP + `:9001/node_group", interval: 1s, without: wait}
uninstall: {affinity: *real}
`

const smokeMapIP = "10.96.0.9"

const (
	smokeGPU = "nvidia.com/gpu"
	smokeHCA = "rdma/hca_shared_devices_ib"
)

// smoke is one cluster with all of heddle, and what was there before it.
type smoke struct {
	*removable
	fleet *fleet
	at    map[string]string // The leaf of each simulated node.
	// address is where the map's Service answers on this host.
	address string
}

// TestSmoke is the life of one installation on a real cluster, scene by scene, each on top of
// those before it. `make smoke` runs it alone.
func TestSmoke(t *testing.T) {
	s := &smoke{removable: &removable{bed: shared(t), plugin: pluginName}}
	for _, scene := range []struct {
		name string
		run  func(*testing.T, *smoke)
	}{
		{"install by the chart", smokeInstall},
		{"labels and taints", smokeLabels},
		{"a GPU", smokeWholeGPU},
		{"a share of a GPU", smokeShare},
		{"HCAs", smokeHCAs},
		{"restart of the plugin", smokePluginRestart},
		{"restart of the kubelet", smokeKubeletRestart},
		{"the map", smokeMap},
		{"a gang", smokeGang},
		{"preemption", smokePreemption},
		{"the page", smokePage},
		{"uninstall", smokeUninstall},
	} {
		if !t.Run(tt(scene.name), func(t *testing.T) { scene.run(t, s) }) {
			s.explain(t)
			return
		}
	}
}

func smokeInstall(t *testing.T, s *smoke) {
	ctx := t.Context()
	err := s.installer.Image(ctx, s.Cluster, "heddle", topoMasterName, nodeName, schedulerName)
	if err != nil {
		t.Fatal(err)
	}
	dump, nodes := s.path("test/machines/dgx-h100.json"), filepath.Join(s.Dir(), "smoke-devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(smokeValues), 0o600); err != nil {
		t.Fatal(err)
	}
	// CDI is on, so that its directory exists.
	if _, err := s.NodeExec(ctx, "busybox", "mkdir", "-p", "/run/cdi"); err != nil {
		t.Fatal(err)
	}
	s.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	s.kubectl(t, "-n", suite, "create", "configmap", "smoke", "--from-file=machine.json="+dump)
	s.applied(t, `{apiVersion: v1, kind: Service, metadata: {name: smoke-map, namespace: `+suite+`}, spec: {clusterIP: `+smokeMapIP+`,
		selector: {app.kubernetes.io/name: `+topoMasterName+`}, ports: [{port: 9001, targetPort: api}]}}`)
	s.node, s.files = s.nodeJSON(t), s.hostFiles(t)
	if err := s.installer.Chart(ctx, s.Cluster, "--values", values, "--set", "gpuDevice.replayDevices="+nodes); err != nil {
		t.Fatal(err)
	}
	s.release = strings.TrimSpace(s.helm(t, "list", "-n", suite, "-q"))
	s.helm(t, "test", s.release, "-n", suite, "--timeout", "3m")
}

func smokeLabels(t *testing.T, s *smoke) {
	s.waitLabel(t, "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
	want := map[string]string{
		"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "81559", "heddle.dev/node.usage": "training", "heddle.dev/rdma.hca.count": "8",
	}
	labels, got := s.bed.node(t, s.Node()).Labels, map[string]string{}
	for key := range want {
		got[key] = labels[key]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	eventually(t, func() string {
		taints := s.kubectl(t, "get", "node", s.Node(), "-o", `jsonpath={range .spec.taints[*]}{.key}={.value}:{.effect} {end}`)
		for _, want := range []string{
			"nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3:NoSchedule", "heddle.dev/node.usage=training:NoSchedule",
		} {
			if !strings.Contains(taints, want) {
				return fmt.Sprintf("taints %q lack %s", taints, want)
			}
		}
		return ""
	})
	s.kubectl(t, "label", "node", s.Node(), "nvidia.com/gpu.count-")
	s.waitLabel(t, "nvidia.com/gpu.count", "8")
}

func smokeWholeGPU(t *testing.T, s *smoke) {
	s.waitAllocatable(t, smokeGPU, 7)
	s.run(t, "gpu-1", smokeGPU+": 1")
	s.exclusive(t, "gpu-1")
}

func smokeShare(t *testing.T, s *smoke) {
	s.waitAllocatable(t, "nvidia.com/sgpu", 16)
	for _, name := range []string{"share-1", "share-2"} {
		s.run(t, name, "nvidia.com/sgpu: 1, nvidia.com/vcore: 30, nvidia.com/vmemory: 8")
	}
	first, second := s.opened(t, "share-1"), s.opened(t, "share-2")
	if diff := cmp.Diff(first, second); diff != "" || len(first) != 1 {
		t.Errorf("two shares open (-first +second):\n%s", diff)
	}
	if diff := cmp.Diff(s.env(t, "share-1", "HEDDLE_GPUS"), s.env(t, "share-2", "HEDDLE_GPUS")); diff != "" {
		t.Errorf("GPUs of two shares (-first +second):\n%s", diff)
	}
	s.exclusive(t, "gpu-1", "share-1")
}

func smokeHCAs(t *testing.T, s *smoke) {
	s.run(t, "rank", smokeGPU+": 2, "+smokeHCA+": 2")
	nodes := strings.Fields(s.kubectl(t, "exec", "rank", "--", "sh", "-c", "ls /dev/infiniband"))
	uverbs := slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return !strings.HasPrefix(name, "uverbs") })
	if hcas := s.env(t, "rank", "HEDDLE_HCAS"); len(uverbs) != 2 || len(hcas) != 2 || !slices.Contains(nodes, "rdma_cm") {
		t.Errorf("HEDDLE_HCAS %v, /dev/infiniband %v, want two HCAs and rdma_cm", hcas, nodes)
	}
	if opened := s.opened(t, "rank"); len(opened) != 2 {
		t.Errorf("it opens GPUs %v, want two", opened)
	}
	s.kubectl(t, "delete", "pod", "rank")
}

func smokePluginRestart(t *testing.T, s *smoke) {
	s.survives(t, "gpu-2", func() {
		s.kubectl(t, "-n", suite, "delete", "pod", "-l", "app.kubernetes.io/name="+s.plugin)
		s.kubectl(t, "-n", suite, "rollout", "status", "ds/"+s.plugin, "--timeout="+patience.String())
	})
}

func smokeKubeletRestart(t *testing.T, s *smoke) {
	s.survives(t, "gpu-3", func() {
		if err := s.RestartKubelet(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func smokeMap(t *testing.T, s *smoke) {
	s.reportOf(t, s.Node())
	s.fleet = &fleet{bed: s.bed, namespace: "smoke"}
	s.kubectl(t, "create", "namespace", s.fleet.namespace)
	s.kubectl(t, "wait", "--for=create", "-n", s.fleet.namespace, "serviceaccount/default", "--timeout="+patience.String())
	s.at = map[string]string{}
	for leaf, names := range map[string][]string{leafA: numbered("smoke-a", 4), leafB: numbered("smoke-b", 2)} {
		for _, name := range names {
			if err := s.AddSimulatedNode(t.Context(), withGPUs(name, 8, nil)); err != nil {
				t.Fatal(err)
			}
			s.at[name] = leaf
		}
	}
	var reports []*v1alpha1.NodeTopology
	for name, leaf := range s.at {
		s.kubectl(t, "wait", "node/"+name, "--for=condition=Ready", "--timeout="+patience.String())
		reports = append(reports, reportOf(name, s.bed.node(t, name).UID, leaf))
	}
	s.report(t, reports...)
	// Of all addresses of Services, those answer that are exposed.
	var err error
	if s.address, err = s.Expose(t.Context(), suite, "smoke-map", 0); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"name":"leaf-%s","kind":"leaf","child":[{"name":"smoke-a0",`, leafA)
	eventually(t, func() string {
		body, err := s.NodeExec(t.Context(), "busybox", "wget", "-qO-", "http://"+smokeMapIP+":9001/node_group")
		if err != nil || !strings.Contains(body, want) || !strings.Contains(body, "smoke-b1") {
			return fmt.Sprintf("/node_group: %v, %s", err, body)
		}
		return ""
	})
	if out, code := s.laptop(t).run(t, "topo"); code != 0 || !strings.Contains(out, "\nleaf-"+leafA+" ") {
		t.Errorf("heddle topo: exit %d\n%s", code, out)
	}
}

func smokeGang(t *testing.T, s *smoke) { s.gang(t, "low", "") }

func smokePreemption(t *testing.T, s *smoke) {
	s.gang(t, "high", s.fleet.priority(t, 1000))
	if left := s.fleet.uids(t, "low"); len(left) != 0 {
		t.Errorf("%v of the preempted gang are left", left)
	}
	eventually(t, func() string {
		list, err := s.client.CoreV1().Events(s.fleet.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Preempted"})
		if err != nil || len(list.Items) != 4 {
			return fmt.Sprintf("%d Events Preempted, want 4; %v", len(list.Items), err)
		}
		return ""
	})
}

// smokePage opens the page of the installed topo-master in Chromium.
func smokePage(t *testing.T, s *smoke) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium on this machine (Debian: apt-get install chromium)")
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.address})
	// Chromium's virtual time stands still while an answer is on its way, as the stream of changes always is.
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/watch" {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer page.Close()
	eventually(t, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		dom, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--user-data-dir="+t.TempDir(), "--virtual-time-budget=10000", "--dump-dom", page.URL).Output()
		for _, want := range []string{"leaf-" + leafA, "smoke-a0", "smoke-b1"} {
			if !strings.Contains(string(dom), want) {
				return fmt.Sprintf("the page lacks %s: %v\n%.2000s", want, err, dom)
			}
		}
		return ""
	})
}

func smokeUninstall(t *testing.T, s *smoke) {
	s.kubectl(t, "delete", "namespace", s.fleet.namespace)
	for name := range s.at {
		s.kubectl(t, "delete", "node", name)
	}
	s.kubectl(t, "delete", "pods", "--all", "--wait")
	s.helm(t, "uninstall", s.release, "-n", suite)
	if diff := cmp.Diff(s.node, s.nodeJSON(t)); diff != "" {
		t.Errorf("the Node (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(s.files, s.hostFiles(t)); diff != "" {
		t.Errorf("the host's files (-before +after):\n%s", diff)
	}
	for _, kind := range []string{"clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "daemonsets", "deployments"} {
		if out := s.kubectl(t, "get", kind, "-A", "-o", "name"); strings.Contains(out, "heddle") {
			t.Errorf("%s are left:\n%s", kind, out)
		}
	}
}
