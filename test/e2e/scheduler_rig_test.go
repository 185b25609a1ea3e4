//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/cluster"
)

const (
	schedulerName = "heddle-scheduler"
	gpu           = "nvidia.com/gpu"
	gangName      = "pod-group.scheduling.sigs.k8s.io/name"
	gangLeast     = "pod-group.scheduling.sigs.k8s.io/min-available"
)

// fleet is a heddle-scheduler beside the cluster's own, on nodes that kwok
// simulates.
type fleet struct {
	*bed
	namespace string
	config    string
	flags     []string
	process   *exec.Cmd
}

// lease are shorter times than the documented ones, for tests that wait for a
// scheduler to follow another.
const lease = "leaderElect: true\n  leaseDuration: 6s\n  renewDeadline: 5s\n  retryPeriod: 500ms"

// newFleet writes the chart's configuration of heddle-scheduler and starts it.
func newFleet(t *testing.T, set ...string) *fleet {
	t.Helper()
	return newFleetOn(t, shared(t), set...)
}

func newFleetOn(t *testing.T, b *bed, set ...string) *fleet {
	t.Helper()
	f := idleFleet(t, b, set...)
	f.start(t)
	return f
}

// idleFleet writes the configuration, for a scheduler that is started later.
// The real node takes nothing, since images of the tests' pods are nowhere.
func idleFleet(t *testing.T, b *bed, set ...string) *fleet {
	t.Helper()
	f := &fleet{bed: b, namespace: "sched-" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36)}
	if _, err := b.installer.Build(t.Context(), schedulerName); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "create", "namespace", f.namespace)
	b.kubectl(t, "cordon", b.Node())
	t.Cleanup(func() {
		b.kubectlAfter(t, "uncordon", b.Node())
		b.kubectlAfter(t, "delete", "namespace", f.namespace, "--wait=false")
		f.clear(t)
	})
	b.kubectl(t, "wait", "--for=create", "-n", f.namespace, "serviceaccount/default", "--timeout=3m")
	args := []string{
		"template", "x", "deploy/helm/heddle", "-n", f.namespace,
		"-s", "templates/scheduler/config.yaml", "-s", "templates/scheduler/deployment.yaml",
		"--api-versions", "scheduling.k8s.io/v1beta1/PodGroup", "--set", "gpuScheduler.enabled=true",
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	text := b.helm(t, args...)
	var config string
	for documents := yaml.NewDecoder(strings.NewReader(text)); config == ""; {
		var object struct{ Data map[string]string }
		if err := documents.Decode(&object); err != nil {
			t.Fatalf("the chart's configuration of the scheduler: %v", err)
		}
		config = object.Data["scheduler.yaml"]
	}
	for line := range strings.Lines(text) {
		if flag, ok := strings.CutPrefix(strings.TrimSpace(line), "- --feature-gates="); ok {
			f.flags = append(f.flags, "--feature-gates="+flag)
		}
	}
	f.config = filepath.Join(t.TempDir(), "scheduler.yaml")
	f.write(t, strings.NewReplacer("leaderElect: true", lease,
		"clientConnection: {", fmt.Sprintf("clientConnection: {kubeconfig: %s, ", b.Kubeconfig())).Replace(config))
	t.Cleanup(func() { f.kill(t) })
	return f
}

func (f *fleet) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs heddle-scheduler on the host.
func (f *fleet) start(t *testing.T) {
	t.Helper()
	f.process = f.replica(t, t.Output())
}

// replica runs another heddle-scheduler, which the caller ends.
func (f *fleet) replica(t *testing.T, log io.Writer) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(f.installer.Dir, schedulerName),
		append([]string{"--config", f.config, "--secure-port=0", "--v=2"}, f.flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// kill ends the scheduler with no time for anything.
func (f *fleet) kill(t *testing.T) {
	t.Helper()
	if f.process == nil {
		return
	}
	end(t, f.process)
	f.process = nil
}

func end(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // It was killed.
}

// clear takes all pods away at once.
func (f *fleet) clear(t *testing.T) {
	t.Helper()
	err := f.client.CoreV1().Pods(f.namespace).DeleteCollection(context.WithoutCancel(t.Context()),
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{})
	if err != nil {
		t.Error(err)
	}
}

// nodes adds simulated nodes, and waits until all are Ready.
func (f *fleet) nodes(t *testing.T, all ...cluster.SimulatedNode) {
	t.Helper()
	api := f.client.CoreV1().Nodes()
	ours := metav1.ListOptions{LabelSelector: "e2e-fleet=" + f.namespace}
	for i := range all {
		if all[i].Labels == nil {
			all[i].Labels = map[string]string{}
		}
		all[i].Labels["e2e-fleet"] = f.namespace
		if err := f.AddSimulatedNode(t.Context(), all[i]); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := api.DeleteCollection(context.WithoutCancel(t.Context()), metav1.DeleteOptions{}, ours); err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() string {
		list, err := api.List(t.Context(), ours)
		if err != nil {
			return err.Error()
		}
		for i := range list.Items {
			ready := func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
			}
			if n := &list.Items[i]; !slices.ContainsFunc(n.Status.Conditions, ready) || len(n.Spec.Taints) > 0 {
				return "node " + n.Name + " is not Ready"
			}
		}
		return ""
	})
}

// gpus adds a simulated node with GPUs.
func (f *fleet) gpus(t *testing.T, name string, n int, annotations map[string]string) {
	t.Helper()
	f.nodes(t, withGPUs(name, n, annotations))
}

func withGPUs(name string, n int, annotations map[string]string) cluster.SimulatedNode {
	return cluster.SimulatedNode{Name: name, Annotations: annotations, Capacity: map[string]string{gpu: strconv.Itoa(n)}}
}

// assign installs the chart's admission of GPU pods, and waits until it works.
func (f *fleet) assign(t *testing.T) {
	t.Helper()
	text := f.helm(t, "template", "x", "deploy/helm/heddle", "-n", f.namespace, "-s", "templates/scheduler/assign.yaml",
		"--set", "gpuScheduler.enabled=true,gpuScheduler.assign=gpu-pods",
		"--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	if err := f.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mutatingadmissionpolicybinding", "mutatingadmissionpolicy"} {
		t.Cleanup(func() { f.kubectlAfter(t, "delete", kind, schedulerName) })
	}
	eventually(t, func() string { return f.goesTo(t, f.pod("probe", 1, nil), schedulerName) })
}

// goesTo returns which scheduler a new pod would go to, if not to this one.
func (f *fleet) goesTo(t *testing.T, pod *corev1.Pod, scheduler string) string {
	t.Helper()
	made, err := f.client.CoreV1().Pods(f.namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err.Error()
	}
	if made.Spec.SchedulerName != scheduler {
		return fmt.Sprintf("%s would go to %q, want %q", pod.Name, made.Spec.SchedulerName, scheduler)
	}
	return ""
}

// pod asks for GPUs and names no scheduler.
func (f *fleet) pod(name string, gpus int, labels map[string]string) *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	if gpus > 0 {
		limits[gpu] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.namespace, Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyOnFailure,
			Containers:    []corev1.Container{{Name: "main", Image: "busybox:1.37", Resources: corev1.ResourceRequirements{Limits: limits}}},
		},
	}
}

// member is a pod of a gang of n.
func (f *fleet) member(name string, i, n, gpus int, annotations map[string]string) *corev1.Pod {
	p := f.pod(fmt.Sprintf("%s-%d", name, i), gpus, map[string]string{gangName: name, gangLeast: strconv.Itoa(n)})
	p.Spec.SchedulerName, p.Annotations = schedulerName, annotations
	return p
}

// bound are the nodes of those pods that have one.
func (f *fleet) bound(t *testing.T, prefix string) map[string]string {
	t.Helper()
	on := map[string]string{}
	for _, p := range f.podsOf(t, prefix) {
		if p.Spec.NodeName != "" {
			on[p.Name] = p.Spec.NodeName
		}
	}
	return on
}

func (f *fleet) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := f.client.CoreV1().Pods(f.namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podsOf are the pods whose names begin so.
func (f *fleet) podsOf(t *testing.T, prefix string) (pods []corev1.Pod) {
	t.Helper()
	list, err := f.client.CoreV1().Pods(f.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, prefix) {
			pods = append(pods, list.Items[i])
		}
	}
	return pods
}

// running waits until n pods run, and returns where.
func (f *fleet) running(t *testing.T, prefix string, n int) (nodes map[string]int) {
	t.Helper()
	eventually(t, func() string {
		nodes = map[string]int{}
		running := 0
		var why []string
		for _, p := range f.podsOf(t, prefix) {
			if p.Status.Phase == corev1.PodRunning {
				running++
				nodes[p.Spec.NodeName]++
			} else {
				why = append(why, p.Name+": "+whyNot(&p))
			}
		}
		if running != n {
			return fmt.Sprintf("%d of %d run\n%s", running, n, strings.Join(why, "\n"))
		}
		return ""
	})
	return nodes
}

// rejected waits until each of n pods has these words as its reason, and no node.
func (f *fleet) rejected(t *testing.T, prefix string, n int, words string) (why string) {
	t.Helper()
	eventually(t, func() string {
		pods := f.podsOf(t, prefix)
		for i := range pods {
			if why = whyNot(&pods[i]); !strings.Contains(why, words) || pods[i].Spec.NodeName != "" {
				return fmt.Sprintf("%s on %q: %q, want %q", pods[i].Name, pods[i].Spec.NodeName, why, words)
			}
		}
		if len(pods) != n {
			return fmt.Sprintf("%d of %d pods", len(pods), n)
		}
		return ""
	})
	return why
}

func whyNot(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Message
		}
	}
	return ""
}
