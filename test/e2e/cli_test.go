//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/cluster"
)

// laptop is the CLI on a machine that has a kubeconfig and is no node.
type laptop struct{ heddle, kubeconfig string }

func (b *bed) laptop(t *testing.T) laptop {
	t.Helper()
	heddle, err := b.installer.Build(t.Context(), "heddle")
	if err != nil {
		t.Fatal(err)
	}
	return laptop{heddle: heddle, kubeconfig: b.Kubeconfig()}
}

// run gives what the CLI prints on stdout, and its exit code. Exit codes over
// 1, and anything on stderr, are no answers.
func (l laptop) run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), l.heddle, args...)
	cmd.Env = []string{"KUBECONFIG=" + filepath.Join(t.TempDir(), "none") + ":" + l.kubeconfig}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
		err, code = nil, 1
	}
	if err != nil || stderr.Len() > 0 {
		t.Fatalf("heddle %s: %v\n%s%s", strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), code
}

// problems are the problems in doctor's answer, as "subject: what is so". Nodes
// without a kubelet are not Ready, which is not what these tests are about.
func problems(out string) (all []string) {
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		if subject, ok := strings.CutPrefix(line, "problem  "); ok && !strings.HasPrefix(subject, "Node ") {
			all = append(all, subject+": "+strings.TrimSpace(lines[i+1]))
		}
	}
	return all
}

// TestCLIDoctorOfANode asks about Nodes in three states.
func TestCLIDoctorOfANode(t *testing.T) {
	b := shared(t)
	cli := b.laptop(t)
	if _, err := b.installer.Build(t.Context(), nodeName); err != nil {
		t.Fatal(err)
	}
	dgx := b.path("test/machines/dgx-h100.json")
	label := func(node string) { b.oneshot(t, "--node-name", node, "--machine", dgx) }

	b.simulated(t, "doctor-well", map[string]string{"nvidia.com/gpu": "8", "rdma/hca_shared_devices_ib": "512"})
	label("doctor-well")
	out, code := cli.run(t, "doctor", "--node", "doctor-well")
	if code != 0 || !strings.HasPrefix(out, "doctor-well: 0 problems, ") {
		t.Errorf("a healthy Node: exit %d\n%s", code, out)
	}
	if out, code = cli.run(t, "doctor", "--node", "doctor-well", "--machine", dgx); code != 0 {
		t.Errorf("a healthy Node and its machine: exit %d\n%s", code, out)
	}

	b.newNode(t, "doctor-conflict")
	b.kubectl(t, "label", "node", "doctor-conflict", "--field-manager=nfd-master",
		"nvidia.com/gpu.replicas=10", "nvidia.com/gpu.count=8", "nvidia.com/gfd.timestamp=1795223568")
	label("doctor-conflict")
	out, code = cli.run(t, "doctor", "--node", "doctor-conflict")
	want := []string{
		`label nvidia.com/gpu.replicas: nfd-master holds it with value "10"; heddle-feature-discovery leaves it to them`,
	}
	if diff := cmp.Diff(want, problems(out)); diff != "" || code != 1 {
		t.Errorf("a label that another manager holds: exit %d, problems (-want +got):\n%s", code, diff)
	}
	out, code = cli.run(t, "doctor", "--node", "doctor-conflict", "--machine", dgx)
	want = []string{
		`label nvidia.com/gpu.replicas: label nvidia.com/gpu.replicas: nfd-master holds it with value "10", want "1"; it is left to them`,
	}
	if diff := cmp.Diff(want, problems(out)); diff != "" || code != 1 {
		t.Errorf("the same, with the machine: exit %d, problems (-want +got):\n%s", code, diff)
	}

	b.newNode(t, "doctor-bare")
	out, code = cli.run(t, "doctor", "--node", "doctor-bare")
	want = []string{"heddle-feature-discovery: has no pod here, so the Node has none of heddle's labels"}
	if diff := cmp.Diff(want, problems(out)); diff != "" || code != 1 {
		t.Errorf("a Node without heddle's labels: exit %d, problems (-want +got):\n%s", code, diff)
	}
}

// TestCLINamesAMissingNode : a name with a typing error.
func TestCLINamesAMissingNode(t *testing.T) {
	cli := shared(t).laptop(t)
	cmd := exec.CommandContext(t.Context(), cli.heddle, "doctor", "--node", "gpu-l", "--kubeconfig", cli.kubeconfig)
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	want := "heddle: read Node gpu-l: nodes \"gpu-l\" not found\n" +
		"Check the name, and the cluster: kubectl config current-context.\n"
	if string(out) != want || !ok || exit.ExitCode() != 2 {
		t.Errorf("error %v, output %q, want %q", err, out, want)
	}
}

// workload is something that runs pods on a node.
type workload struct{ kind, name, tolerations string }

func (w workload) manifest(node string) string {
	spec := fmt.Sprintf("{nodeSelector: {kubernetes.io/hostname: %s}, terminationGracePeriodSeconds: 0, tolerations: %s, "+
		"containers: [{name: c, image: 'localhost/busybox:1', command: [sleep, '600']}]}", node, w.tolerations)
	meta := fmt.Sprintf("metadata: {name: %s, namespace: taints}\n", w.name)
	template := fmt.Sprintf("spec: {selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: %[2]s}}\n",
		w.name, spec)
	if w.kind == "Pod" {
		return "apiVersion: v1\nkind: Pod\n" + meta + "spec: " + spec + "\n---\n"
	}
	return "apiVersion: apps/v1\nkind: " + w.kind + "\n" + meta + template + "---\n"
}

// TestCLITaintsOfTheRealNode has the real controllers make pods on the real
// node, with the tolerations that they add themselves.
func TestCLITaintsOfTheRealNode(t *testing.T) {
	b := shared(t)
	cli := b.laptop(t)
	if _, err := b.installer.Build(t.Context(), nodeName); err != nil {
		t.Fatal(err)
	}
	b.oneshot(t, "--node-name", b.Node(), "--machine", b.path("test/machines/dgx-h100.json"))
	t.Cleanup(func() { b.cleanupAfter(t, b.Node()) })
	const product = "nvidia.com/gpu.product"
	file := filepath.Join(t.TempDir(), "workloads.yaml")
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: taints}\n---\n"
	var all []workload
	for _, kind := range []string{"DaemonSet", "Deployment", "Pod"} {
		kinds := strings.ToLower(kind)
		all = append(all,
			workload{kind, kinds + "-everything", "[{operator: Exists}]"},
			workload{kind, kinds + "-key", "[{key: " + product + ", operator: Exists, effect: NoSchedule}]"},
			workload{kind, kinds + "-value", "[{key: " + product + ", value: NVIDIA-H100-80GB-HBM3}]"},
			workload{kind, kinds + "-other-value", "[{key: " + product + ", value: NVIDIA-H20}]"},
			workload{kind, kinds + "-other-effect", "[{key: " + product + ", operator: Exists, effect: NoExecute}]"},
			workload{kind, kinds + "-nothing", "[]"},
		)
	}
	for _, w := range all {
		text += w.manifest(b.Node())
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "apply", "-f", file)
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "namespace", "taints", "--timeout=3m") })
	eventually(t, func() string {
		on := b.kubectl(t, "-n", "taints", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")
		if n := strings.Count(on, b.Node()); n != len(all) {
			return fmt.Sprintf("%d of %d pods are on the node", n, len(all))
		}
		return ""
	})

	var want []string
	for _, kind := range []string{"DaemonSet", "Deployment", "Pod"} {
		for _, name := range []string{"-nothing", "-other-effect", "-other-value"} {
			want = append(want, kind+" "+strings.ToLower(kind)+name)
		}
	}
	out, code := cli.run(t, "doctor", "taints", "--if", "gpuProduct", "--node", b.Node())
	var got []string
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 2 && words[1] == "taints" {
			got = append(got, words[0]+" "+words[2])
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || code != 1 {
		t.Errorf("exit %d; owners that could not come back (-want +got):\n%s\n%s", code, diff, out)
	}
	if !strings.HasPrefix(out, "With the taint "+product+"=NVIDIA-H100-80GB-HBM3:NoSchedule on Node "+b.Node()) {
		t.Errorf("another taint, or another Node:\n%s", out)
	}
	b.reallyBlocked(t, want)
}

// reallyBlocked sets the taint and has every pod made again: those that the
// CLI named stay away, and no other.
func (b *bed) reallyBlocked(t *testing.T, want []string) {
	t.Helper()
	const taint = "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3:NoSchedule"
	b.kubectl(t, "taint", "node", b.Node(), taint)
	t.Cleanup(func() { b.kubectlAfter(t, "taint", "node", b.Node(), taint+"-") })
	b.kubectl(t, "-n", "taints", "delete", "pods", "-l", "app", "--timeout=3m")
	blocked := map[string]bool{}
	for _, owner := range want {
		_, name, _ := strings.Cut(owner, " ")
		blocked[name] = true
	}
	eventually(t, func() string {
		lines := b.kubectl(t, "-n", "taints", "get", "pods", "-l", "app", "-o",
			`jsonpath={range .items[*]}{.metadata.labels.app} on={.spec.nodeName}{"\n"}{end}`)
		placed := map[string]bool{}
		for line := range strings.Lines(lines) {
			name, node, _ := strings.Cut(strings.TrimSpace(line), " on=")
			if placed[name] = node != ""; placed[name] && blocked[name] {
				t.Fatalf("%s was named, and is back on %s", name, node)
			}
		}
		for _, kind := range []string{"daemonset", "deployment"} {
			for _, name := range []string{"-everything", "-key", "-value"} {
				if !placed[kind+name] {
					return kind + name + " was not named, and is not back"
				}
			}
		}
		return ""
	})
}

// simulated adds a node that is Ready, with these resources.
func (b *bed) simulated(t *testing.T, name string, capacity map[string]string) {
	t.Helper()
	if err := b.AddSimulatedNode(t.Context(), cluster.SimulatedNode{Name: name, Capacity: capacity}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "node", name) })
	if err := b.WaitNodeReady(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// cleanupAfter removes from a Node what discovery wrote, when the test's
// context is over.
func (b *bed) cleanupAfter(t *testing.T, node string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	program, err := b.installer.Build(ctx, nodeName)
	if err != nil {
		t.Error(err)
		return
	}
	cmd := exec.CommandContext(ctx, program, "feature-discovery",
		"--cleanup", "--oneshot", "--kubeconfig", b.Kubeconfig(), "--node-name", node, "--log-level", "warn")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("clean up Node %s: %v\n%s", node, err, out)
	}
}
