//go:build e2e && linux

// Package versions proves the chart and its programs on API servers of older
// Kubernetes. Nodes are objects, and what a kubelet would do is not done: a pod is
// placed when it has a node.
package versions

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

const (
	namespace     = "heddle-system"
	schedulerName = "heddle-scheduler"
	gpu           = "nvidia.com/gpu"
)

// minors are those that the chart installs heddle-scheduler on. Where that is
// possible, the newest API server emulates them too, which needs no build.
var minors = []struct {
	version string
	own     bool     // has an API server of its own
	flags   []string // of the newest
}{
	{version: "1.31", own: true},
	{version: "1.33", own: true},
	{version: "1.34", own: true},
	{version: "1.34", flags: []string{"--emulated-version=1.34"}},
	{version: "1.35", flags: []string{"--emulated-version=1.35"}},
	{version: "1.36", own: true},
	{version: "1.36", flags: []string{"--emulated-version=1.36"}},
	{version: "1.37"},
}

// TestVersions installs all objects of the chart on each API server, and runs what
// needs no kubelet: two replicas of heddle-scheduler, with the chart's flags, and
// the other programs, each under the chart's account.
func TestVersions(t *testing.T) {
	all := os.Getenv("HEDDLE_VERSIONS") == "all"
	b := cluster.Builder{Log: os.Stderr}
	binaries, err := b.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cache, err := cluster.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	installer, err := install.New(t.Context(), filepath.Join(cache, "install-versions"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	err = installer.BuildAll(t.Context(), schedulerName, "heddle-node", "heddle-topo-master")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range minors {
		name := m.version
		if len(m.flags) > 0 {
			name += "-emulated"
		}
		t.Run(name, func(t *testing.T) {
			if m.own && !all {
				t.Skip("builds an API server of its own, 5 CPU minutes: set HEDDLE_VERSIONS=all to run it")
			}
			binary := filepath.Join(binaries.Kubernetes, "kube-apiserver")
			if m.own {
				dir, err := b.Older(t.Context(), "apiserver-"+m.version)
				if err != nil {
					t.Fatal(err)
				}
				binary = filepath.Join(dir, "kube-apiserver")
			}
			s := startServer(t, binaries.Kubernetes, binary, m.flags...)
			w := &world{apiServer: s, t: t, scheduler: filepath.Join(installer.Dir, schedulerName)}
			w.chart(installer, m.version)
			w.daemons(installer)
			w.claims(installer, m.version)
			w.scene()
		})
	}
}

// world is an API server with the chart's objects.
type world struct {
	*apiServer
	t         *testing.T
	scheduler string
	args      []string
}

// chart applies every object of the chart as Helm renders it for that version, and
// keeps how its pods would start heddle-scheduler.
func (w *world) chart(installer *install.Installer, version string) {
	w.t.Helper()
	w.apply(w.t, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+namespace+`"}}`)
	text, err := installer.Template(w.t.Context(), "x", "deploy/helm/heddle", "-n", namespace, "--include-crds",
		"--kube-version", version+".0", "--set", "gpuScheduler.enabled=true,gpuDevice.enabled=true,topoDiscovery.enabled=true",
		"--set", "gpuDevice.claims.enabled="+strconv.FormatBool(version >= firstClaims),
		// The scheduler runs on this host, from where the Service has no name.
		"--set", "gpuScheduler.map.address=http://127.0.0.1:1/node_group")
	if err != nil {
		w.t.Fatal(err)
	}
	w.apply(w.t, text)
	d, err := w.client.AppsV1().Deployments(namespace).Get(w.t.Context(), schedulerName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.args = w.arguments(d)
}

// arguments are the container's, with the kubeconfig that stands for the pod's
// token in a copy of the chart's configuration.
func (w *world) arguments(d *appsv1.Deployment) (args []string) {
	w.t.Helper()
	token, err := w.client.CoreV1().ServiceAccounts(namespace).CreateToken(w.t.Context(), d.Spec.Template.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	kubeconfig := w.kubeconfig(w.t, token.Status.Token)
	object, err := w.client.CoreV1().ConfigMaps(namespace).Get(w.t.Context(), schedulerName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(object.Data["scheduler.yaml"]), &config); err != nil {
		w.t.Fatal(err)
	}
	config["clientConnection"].(map[string]any)["kubeconfig"] = kubeconfig
	for key, value := range map[string]string{"leaseDuration": "6s", "renewDeadline": "5s", "retryPeriod": "500ms"} {
		config["leaderElection"].(map[string]any)[key] = value
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "--config=") {
			arg = "--config=" + file
		}
		args = append(args, arg)
	}
	return append(args, "--secure-port=0")
}

// scene is a gang, a share of a GPU, and a gang after the first replica is dead.
func (w *world) scene() {
	first := run(w.t, w.scheduler, w.args...)
	w.node("a", corev1.ResourceList{gpu: resource.MustParse("4")}, nil)
	w.node("b", corev1.ResourceList{gpu: resource.MustParse("4")}, nil)
	w.gang("first", 2)
	w.bound("first-0", "first-1")

	shared := allocation.NodeGPUs{Version: allocation.Version, GPUs: []allocation.GPU{
		{UUID: "GPU-0", MemoryMiB: 80 << 10, Slots: 10, Zone: 1, Healthy: true},
	}}
	w.node("c", corev1.ResourceList{
		"nvidia.com/sgpu": resource.MustParse("10"), "nvidia.com/vcore": resource.MustParse("100"), "nvidia.com/vmemory": resource.MustParse("80"),
	}, map[string]string{wellknown.SharedGPUs: shared.String()})
	w.pod("share", nil, corev1.ResourceList{
		"nvidia.com/sgpu": resource.MustParse("1"), "nvidia.com/vcore": resource.MustParse("10"), "nvidia.com/vmemory": resource.MustParse("4"),
	})
	if share := w.bound("share")[0]; share.Annotations[wellknown.SGPUAllocation] == "" || share.Spec.NodeName != "c" {
		w.t.Errorf("the share is on %q with annotations %v", share.Spec.NodeName, share.Annotations)
	}

	run(w.t, w.scheduler, w.args...)
	kill(first)
	w.node("d", corev1.ResourceList{gpu: resource.MustParse("4")}, nil)
	w.node("e", corev1.ResourceList{gpu: resource.MustParse("4")}, nil)
	w.gang("second", 2)
	w.bound("second-0", "second-1")
}

// node makes a Node object that is Ready, with room.
func (w *world) node(name string, room corev1.ResourceList, annotations map[string]string) {
	w.t.Helper()
	api := w.client.CoreV1().Nodes()
	n, err := api.Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	room[corev1.ResourceCPU], room[corev1.ResourcePods] = resource.MustParse("64"), resource.MustParse("100")
	n.Status.Capacity, n.Status.Allocatable = room, room
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := api.UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// gang makes n pods with three GPUs each.
func (w *world) gang(name string, n int) {
	w.t.Helper()
	labels := map[string]string{
		"pod-group.scheduling.sigs.k8s.io/name": name, "pod-group.scheduling.sigs.k8s.io/min-available": strconv.Itoa(n),
	}
	for i := range n {
		w.pod(fmt.Sprintf("%s-%d", name, i), labels, corev1.ResourceList{gpu: resource.MustParse("3")})
	}
}

func (w *world) pod(name string, labels map[string]string, limits corev1.ResourceList) {
	w.t.Helper()
	_, err := w.client.CoreV1().Pods(metav1.NamespaceDefault).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			SchedulerName: schedulerName,
			Containers:    []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: limits}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// bound waits until each of the pods has a node.
func (w *world) bound(names ...string) (pods []*corev1.Pod) {
	w.t.Helper()
	for _, name := range names {
		eventually(w.t, func() string {
			p, err := w.client.CoreV1().Pods(metav1.NamespaceDefault).Get(w.t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if p.Spec.NodeName == "" {
				return fmt.Sprintf("pod %s has no node: %v", name, p.Status.Conditions)
			}
			pods = append(pods, p)
			return ""
		})
	}
	return pods
}
