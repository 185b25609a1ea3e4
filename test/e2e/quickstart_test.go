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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/docs"
	"github.com/heddle-dev/heddle/test/install"
	"github.com/heddle-dev/heddle/test/nvidia"
)

const quickStart = "docs/get-started/quick-start.md"

// TestQuickStart follows the quick start on a bare node, for each way that a node comes by NVIDIA's driver: it runs the
// page's own commands, and no daemon restarts. The page's other parts, a gang and a share, follow on the last node. Images
// are loaded in place of a push, and those of CUDA and vLLM are stand-ins that call the driver's library.
func TestQuickStart(t *testing.T) {
	if _, err := os.Lstat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has a driver of its own")
	}
	w := newReader(t)
	layouts := driverLayouts()
	for i, l := range layouts {
		t.Run(tt(l.name), func(t *testing.T) {
			product := fmt.Sprint("NVIDIA-L", i)
			w.standIns(t, w.layOut(t, &l, strings.ReplaceAll(product, "-", " ")))
			defer w.uninstall(t)
			w.firstPod(t, w.nodeWithoutRDMA(t))
			w.offersGPUs(t, product)
			if i == len(layouts)-1 {
				w.firstGang(t)
				w.firstShare(t)
			}
		})
	}
	t.Run("HCAs", w.firstPodWithHCAs)
}

// reader is a person at a machine with a clone, kubectl, helm and heddle, who follows the page.
type reader struct {
	*bed
	// filled replaces what the page leaves to its reader.
	filled *strings.Replacer
}

// newReader loads the images, and makes the chart by the page's first command.
func newReader(t *testing.T) *reader {
	t.Helper()
	ctx := t.Context()
	b := ownBed(t, cluster.Options{Name: "e2e-quick-start"})
	w := &reader{bed: b, filled: strings.NewReplacer("DOMAIN/PROJECT", install.Registry, "NODE", b.Node(), "RELEASE", "heddle")}
	commands := w.commands(t, "Your first pod")
	if n := len(commands); n > 5 {
		t.Errorf("%d commands to the first pod, want 5 at most: %q", n, commands)
	}
	build := strings.Fields(commands[0])
	if build[0] != "make" || !slices.Contains(build, "images") || !slices.Contains(build, "push") {
		t.Fatalf("the first command is %q", commands[0])
	}
	if err := b.installer.Image(ctx, b.Cluster, "heddle", nodeName, topoMasterName, schedulerName); err != nil {
		t.Fatal(err)
	}
	if _, err := b.installer.Build(ctx, "heddle"); err != nil {
		t.Fatal(err)
	}
	w.run(t, "make chart VERSION="+install.Tag)
	if _, err := b.NodeExec(ctx, "ctr", "images", "tag", cluster.BusyboxImage, "docker.io/library/busybox:1.37"); err != nil {
		t.Fatal(err)
	}
	b.applied(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}")
	return w
}

// commands returns the commands of a part of the page, with the reader's values.
func (w *reader) commands(t *testing.T, part string) []string {
	t.Helper()
	commands := docs.Commands(t, w.installer.Root, quickStart, part)
	for i, c := range commands {
		commands[i] = w.filled.Replace(c)
	}
	return commands
}

// run types a command in the clone.
func (w *reader) run(t *testing.T, command string) string {
	t.Helper()
	const helm = `helm() { go tool -modfile=tools/helm/go.mod helm "$@"; }` + "\n"
	ctx := context.WithoutCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sh", "-euc", helm+command)
	cmd.Dir = w.installer.Root
	path := []string{w.installer.Dir, filepath.Dir(w.KubectlCommand(ctx).Path), os.Getenv("PATH")}
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig(), "PATH="+strings.Join(path, ":"),
		"HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	t.Logf("$ %s\n%s%s", command, stdout.String(), stderr.String())
	if err != nil {
		t.Fatal(err)
	}
	return stdout.String()
}

// standIns loads an image of a program that is linked with libcuda.so.1 under the names of the images for GPUs. With
// arguments, as the service of a model has, it stays.
func (w *reader) standIns(t *testing.T, d *nvidia.Driver) {
	t.Helper()
	const code = `#include <stdio.h>
#include <unistd.h>
int cuInit(unsigned);
int main(int n, char **args) {
	int failed = cuInit(0);
	puts(failed ? "Test FAILED" : "Test PASSED");
	fflush(stdout);
	return failed ? 1 : n > 1 ? pause() : 0;
}
`
	dir := t.TempDir()
	source, program, archive := filepath.Join(dir, "cuda.c"), filepath.Join(dir, "cuda"), filepath.Join(dir, "cuda.tar")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	cc := exec.CommandContext(t.Context(), "cc", "-o", program, source, "-L", d.Libraries(), "-lcuda")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0", "docker.io/vllm/vllm-openai:v0.11.0"} {
		err := image.Pack(t.Context(), archive, image.Spec{
			Name: name, Files: map[string]string{"/cuda": program}, Entrypoint: []string{"/cuda"},
		})
		if err = errors.Join(err, w.LoadImage(t.Context(), archive)); err != nil {
			t.Fatal(err)
		}
	}
}

// nodeWithoutRDMA edits the first pod as the page says.
func (w *reader) nodeWithoutRDMA(t *testing.T) *strings.Replacer {
	t.Helper()
	return w.edited(t, regexp.MustCompile(`, rdma/hca_shared_devices_ib: 4`))
}

// edited is a copy of the first pod without a part, in place of the example in the page's command.
func (w *reader) edited(t *testing.T, without *regexp.Regexp) *strings.Replacer {
	t.Helper()
	const example = "deploy/examples/first-pod.yaml"
	text, err := os.ReadFile(w.path(example))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(without.FindAll(text, -1)); n != 1 {
		t.Fatalf("%s has %d of %s", example, n, without)
	}
	file := filepath.Join(t.TempDir(), "first-pod.yaml")
	if err := os.WriteFile(file, without.ReplaceAll(text, []byte("$1")), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(example, file)
}

// firstPod installs heddle and runs the first pod, and logs how long that takes. It returns the pod's output.
func (w *reader) firstPod(t *testing.T, edit *strings.Replacer, set ...string) string {
	t.Helper()
	commands := w.commands(t, "Your first pod")
	start := time.Now()
	w.run(t, strings.Join(append([]string{commands[1]}, set...), " "))
	for _, c := range commands[2 : len(commands)-1] {
		w.run(t, edit.Replace(c))
	}
	w.kubectl(t, "wait", "pod/first-pod", "--for=condition=Ready", "--timeout="+patience.String())
	t.Logf("from helm install to the pod running: %.0f s", time.Since(start).Seconds())
	out := w.run(t, commands[len(commands)-1])
	gpus := regexp.MustCompile(`"uuid": ?"GPU-`).FindAllString(out, -1)
	if len(gpus) != 4 || !strings.Contains(out, "Test PASSED") && strings.Contains(w.run(t, "kubectl get pod first-pod -o yaml"), "initContainers:") {
		t.Errorf("%d GPUs, want 4, and CUDA's word:\n%s", len(gpus), out)
	}
	return out
}

// firstPodWithHCAs is the page on a replayed DGX, whose GPUs have no driver: without the container for CUDA.
func (w *reader) firstPodWithHCAs(t *testing.T) {
	dump, nodes := w.path("test/machines/dgx-h100.json"), filepath.Join(w.Dir(), "quick-start-devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	w.kubectl(t, "-n", suite, "create", "configmap", "dgx", "--from-file=machine.json="+dump)
	defer w.uninstall(t)
	out := w.firstPod(t, w.edited(t, regexp.MustCompile(`(?s)  initContainers:.*?(  containers:)`)),
		"--set gpuLabel.machineConfigMap=dgx,gpuDevice.machineConfigMap=dgx,gpuDevice.replayDevices="+nodes)
	hcas := regexp.MustCompile(`(?m)^NCCL_IB_HCA==?(.*)$`).FindStringSubmatch(out)
	if hcas == nil || len(strings.Split(hcas[1], ",")) != 4 || strings.Count(out, "\nuverbs") != 4 || len(regexp.MustCompile(`"class": ?"PIX"`).FindAllString(out, -1)) != 8 {
		t.Errorf("want four HCAs, each PIX to a GPU: %q", hcas)
	}
}

// firstGang turns the scheduler and the map on, and runs the gang of two pods.
func (w *reader) firstGang(t *testing.T) {
	t.Helper()
	commands := w.commands(t, "Your first gang")
	for _, c := range commands[:len(commands)-1] {
		w.run(t, c)
	}
	w.kubectl(t, "wait", "job/first-gang", "--for=jsonpath={.status.ready}=2", "--timeout="+patience.String())
	show := commands[len(commands)-1]
	eventually(t, func() string {
		if out := w.run(t, show); !regexp.MustCompile(`(?m)^default +first-gang .* Running +2 of 2 .*` + w.Node()).MatchString(out) {
			return out
		}
		return ""
	})
}

// firstShare shares the GPUs of the node that no pod holds, and runs three shares of one GPU; then the other examples of
// shares, on a GPU for each QoS policy.
func (w *reader) firstShare(t *testing.T) {
	t.Helper()
	w.run(t, "kubectl delete pod first-pod --grace-period=1")
	commands := w.commands(t, "Your first share")
	for _, c := range commands[:len(commands)-1] {
		w.run(t, c)
	}
	w.kubectl(t, "rollout", "status", "deploy/sgpu-plain", "--timeout="+patience.String())
	out := w.run(t, commands[len(commands)-1]+" || test $? = 1") // Devices of a simulated driver have problems.
	if shares := regexp.MustCompile(`(?m)default/sgpu-plain-\S+ +main +30 +10 `).FindAllString(out, -1); len(shares) != 3 {
		t.Errorf("%d shares, want 3", len(shares))
	}
	w.run(t, "kubectl apply -f deploy/examples/vllm.yaml -f deploy/examples/sgpu-qos.yaml")
	w.kubectl(t, "rollout", "status", "deploy/chat", "--timeout="+patience.String())
	w.kubectl(t, "wait", "pod/sgpu-burst", "pod/sgpu-best-effort", "--for=condition=Ready", "--timeout="+patience.String())
	if out := w.run(t, "kubectl logs deploy/chat"); !strings.Contains(out, "Test PASSED") {
		t.Error("the stand-in of vLLM has no CUDA")
	}
}

// uninstall deletes the reader's pods, and heddle by the documented command.
func (w *reader) uninstall(t *testing.T) {
	t.Helper()
	if t.Failed() {
		w.explain(t)
	}
	w.run(t, "kubectl delete --wait --all deployments,jobs,pods --grace-period=1")
	w.run(t, w.filled.Replace(docs.Commands(t, w.installer.Root, "docs/operate/upgrade.md", "Uninstall")[0]))
}

// explain logs what the reader of a failed part wants to see.
func (w *reader) explain(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp", "-o", "custom-columns=O:.involvedObject.name,R:.reason,M:.message"},
		{"-n", suite, "logs", "-l", "app.kubernetes.io/part-of=heddle", "--tail=30", "--prefix"},
	} {
		out, err := w.Kubectl(context.WithoutCancel(t.Context()), args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
