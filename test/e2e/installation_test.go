//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

const pluginName, nodeName = "heddle-device-plugin", "heddle-node"

// removableValues are values with which every daemon of a node writes something.
const removableValues = `
config:
  cluster: {preset: scheme, usage: hybrid, mode: sgpu}
gpuLabel:
  machineConfigMap: removable
  affinity: &real
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
gpuDevice: {machineConfigMap: removable, affinity: *real}
topoDiscovery:
  enabled: true
  worker: {machineConfigMap: removable, affinity: *real}
  master: {replicas: 1, affinity: *real}
uninstall: {affinity: *real}
`

// removable is the chart with daemons of a node, and what was there before it.
type removable struct {
	*bed
	release string
	plugin  string // The DaemonSet that has the device plugin.
	node    string // The Node's JSON, without what changes by itself.
	files   []string
	// library is what gpuDevice.preload.image brings.
	library []byte
}

// TestLifeOfAnInstallation is the life of an installation with a share running, step by
// step; each step stands on those before.
func TestLifeOfAnInstallation(t *testing.T) {
	ctx, own := t.Context(), ownBed(t, cluster.Options{Name: "e2e-removed"})
	b := &removable{bed: own, plugin: pluginName, library: libraryImage(t, own)}
	if err := b.installer.Image(ctx, b.Cluster, "heddle", nodeName, topoMasterName); err != nil {
		t.Fatal(err)
	}
	dump, nodes := b.path("test/machines/dgx-h100.json"), filepath.Join(b.Dir(), "devices-"+b.plugin)
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(removableValues), 0o600); err != nil {
		t.Fatal(err)
	}
	// CDI is on, so its directory is there.
	if _, err := b.NodeExec(ctx, "busybox", "mkdir", "-p", "/run/cdi"); err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(ctx, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+suite+`"}}`); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "-n", suite, "create", "configmap", "removable", "--from-file=machine.json="+dump)
	t.Cleanup(func() { b.kubectlAfter(t, "-n", suite, "delete", "configmap", "removable") })
	b.plainManifest(t)
	if err := b.installer.Chart(ctx, b.Cluster, "--values", file, "--set", "gpuDevice.replayDevices="+nodes+
		",gpuDevice.preload.image="+libraryName+
		",config.cluster.sgpu.enforce.memory=preload,config.cluster.sgpu.enforce.compute=preload"); err != nil {
		t.Fatal(err)
	}
	b.release = strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q"))
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range []string{"ds/" + b.plugin, "job/heddle-uninstall"} {
				out, _ := b.Kubectl(context.WithoutCancel(ctx), "-n", suite, "logs", what, "--tail=30")
				t.Logf("%s:\n%s", what, out)
			}
		}
	})
	for _, step := range []struct {
		name string
		run  func(*testing.T, *removable)
	}{
		{"every daemon writes something", stepWritten},
		{"a library out of an image is in the container with a share", stepLibrary},
		{"an upgrade and a rollback leave a running share alone", stepRolled},
		{"an uninstall is rejected while a share is bound", stepHeld},
	} {
		if !t.Run(tt(step.name), func(t *testing.T) { step.run(t, b) }) {
			return
		}
	}
}

// nodeJSON is the Node without versions, times, the list of images, and resources of device plugins, which kubelets keep.
func (b *removable) nodeJSON(t *testing.T) string {
	t.Helper()
	n := b.bed.node(t, b.Node())
	n.ManagedFields, n.ResourceVersion, n.Status.Images = nil, "", nil
	for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool { return strings.Contains(string(name), "/") })
	}
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.Time{}, metav1.Time{}
	}
	text, err := json.MarshalIndent(n, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hostFiles are the files of the node where heddle has some. The kubelet's
// checkpoint is its own.
func (b *removable) hostFiles(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, args := range [][]string{
		{"find", "/var/lib", "-maxdepth", "1"}, {"find", "/run/cdi", "/etc/cdi", "/var/lib/kubelet/device-plugins"},
	} {
		out, err := b.NodeExec(t.Context(), "busybox", args...)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Fields(out)...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(all, func(path string) bool { return strings.HasSuffix(path, "kubelet_internal_checkpoint") })
}

const sharer = "sharer"

func stepWritten(t *testing.T, b *removable) {
	b.waitLabel(t, "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
	b.reportOf(t, b.Node())
	b.shareOnNode(t, sharer)
	eventually(t, func() string {
		n := b.bed.node(t, b.Node())
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "HeddleReady" }) {
			return "no condition HeddleReady"
		}
		if n.Annotations["heddle.dev/sgpu-cards"] == "" || len(n.Spec.Taints) == 0 {
			return "no annotation or no taint"
		}
		return ""
	})
	b.helm(t, "test", b.release, "-n", suite, "--timeout", "1m")
	if out := b.kubectl(t, "kustomize", b.path("deploy/kustomize/example")); strings.Count(out, "image: registry.internal/gpu/") != 5 ||
		!strings.Contains(out, "example.com/gpu: \"true\"") || !strings.Contains(out, "mode: sgpu") {
		t.Error("the example of kustomize does not change images, configuration and nodes")
	}
}

// plainManifest asks the API server whether it takes what an installation without Helm
// applies, and the example that changes it. Objects of a release would be merged with it.
func (b *removable) plainManifest(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"-f", "deploy/kustomize/base/heddle.yaml"}, {"-k", "deploy/kustomize/example"}} {
		objects := b.kubectl(t, "create", "--dry-run=client", "-o", "name", args[0], b.path(args[1]))
		out := b.kubectl(t, "apply", "--server-side", "--force-conflicts", "--dry-run=server", args[0], b.path(args[1]))
		want, got := strings.Count(objects, "\n"), strings.Count(out, " serverside-applied (server dry run)\n")
		if want < 40 || got != want {
			t.Errorf("the API server takes %d of %d objects of %s:\n%s", got, want, args[1], out)
		}
	}
}

// life is by what a container is known that was not started again.
func (b *removable) life(t *testing.T) string {
	t.Helper()
	return b.kubectl(t, "get", "pod", sharer, "-o",
		"jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
}

// rolled runs a command of Helm that starts another device plugin, and waits for its end.
func (b *removable) rolled(t *testing.T, args ...string) {
	t.Helper()
	b.helm(t, append(args, "-n", suite, "--wait", "--timeout", "3m")...)
}

func stepRolled(t *testing.T, b *removable) {
	before := b.life(t)
	for _, args := range [][]string{
		{"upgrade", b.release, "deploy/helm/heddle", "--reuse-values", "--set", "logLevel=debug"}, {"rollback", b.release, "1"},
	} {
		b.rolled(t, args...)
		if diff := cmp.Diff(before, b.life(t)); diff != "" {
			t.Errorf("helm %s: the container with a share (-before +after):\n%s", args[0], diff)
		}
	}
	eventually(t, func() string {
		left := b.bed.node(t, b.Node()).Status.Allocatable["nvidia.com/sgpu"]
		if left.IsZero() {
			return "no shares after the rollback"
		}
		return ""
	})
}

func stepHeld(t *testing.T, b *removable) {
	out, err := b.installer.Helm(t.Context(), b.Cluster, "uninstall", b.release, "-n", suite, "--timeout", "2m")
	if err == nil || !strings.Contains(out+err.Error(), "default/"+sharer) {
		t.Errorf("uninstall: %v\n%s\nwant an error that names the pod", err, out)
	}
	if pods := b.pods(t, b.plugin); len(pods) != 1 || slices.Contains(pods[0].Spec.Containers[0].Args, "--cleanup") {
		t.Errorf("the device plugin after the error: %d pods", len(pods))
	}
}

// shareOnNode runs a pod with a share of a GPU of the real node.
func (b *bed) shareOnNode(t *testing.T, name string) {
	t.Helper()
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "default"}, "spec": {
		"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
		"nodeSelector": {"kubernetes.io/hostname": %q}, "containers": [{"name": "main", "image": %q,
		"resources": {"limits": {"nvidia.com/sgpu": 1, "nvidia.com/vcore": 30, "nvidia.com/vmemory": 8}}}]}}`,
		name, b.Node(), cluster.PauseImage)
	if err := b.Apply(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=3m")
}
