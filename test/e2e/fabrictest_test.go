//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/cluster/image"
	"github.com/heddle-dev/heddle/test/install"
)

// fabricValues install all that `heddle fabric test` needs on the real node.
const fabricValues = `
gpuLabel:
  machineConfigMap: fabric
  affinity: &real
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
gpuDevice: {machineConfigMap: fabric, affinity: *real}
topoDiscovery:
  enabled: true
  worker: {machineConfigMap: fabric, affinity: *real}
  master: {replicas: 1, affinity: *real}
  test:
    schedule: "0 0 1 1 *"
    args: [--nodes=node1, --image=localhost/perftest:1, --seconds=1]
gpuScheduler:
  enabled: true
  replicas: 1
  assign: gpu-pods
  affinity: *real
  map: {address: "http://` + smokeMapIP + `:9001/node_group", interval: 1s}
uninstall: {affinity: *real}
`

const perftestImage = "localhost/perftest:1"

// TestFabricTest runs `heddle fabric test` on the real kubelet, with programs in a pod that holds all devices of the node, and a
// stand-in for perftest: the slow HCA is named by all that shows cables, nothing is left behind, a job takes the node
// from a test, and the CronJob does the same.
func TestFabricTest(t *testing.T) {
	b := ownBed(t, cluster.Options{Name: "e2e-fabric"})
	b.installFabric(t)
	eventually(t, func() string {
		if got := b.node(t, b.Node()).Status.Allocatable[gpu]; got.Value() != 8 {
			return fmt.Sprintf("allocatable %s is %s", gpu, got.String())
		}
		if report := b.reportOf(t, b.Node()); len(report.Spec.Rails) < 8 {
			return fmt.Sprintf("%d rails", len(report.Spec.Rails))
		}
		return ""
	})
	args := []string{
		"fabric", "test", "--nodes", b.Node(), "--image", perftestImage, "-n", suite, "--label",
	}
	notes := filepath.Join(t.TempDir(), "notes")
	plan, code := b.fabric(t.Context(), t, notes, append(args, "--dry-run")...)
	if t.Log(plan); code != 0 || !strings.Contains(plan, "1 node with 8 ports") {
		t.Fatalf("dry run: exit %d\n%s%s", code, plan, read(t, notes))
	}
	out, code := b.fabric(t.Context(), t, notes, append(args, "--seconds", "1", "-o", "json")...)
	t.Logf("%s\n%s", read(t, notes), out)
	var answer struct {
		Faults []struct {
			Kind  string   `json:"kind"`
			What  string   `json:"what"`
			Value string   `json:"value"`
			Where []string `json:"where"`
		} `json:"faults"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 1 || len(answer.Faults) != 1 {
		t.Fatalf("exit %d, %v", code, err)
	}
	if f := answer.Faults[0]; f.Kind != "hca" || f.What != "bandwidth" || len(f.Where) != 1 || f.Where[0] != "node1 mlx5_3 port 1" || f.Value != "97 Gb/s" {
		t.Errorf("fault %+v", f)
	}
	b.measured(t)
	b.nothingLeft(t)

	// A job takes the node from a test that would go on for an hour.
	ended := make(chan string, 1)
	long := filepath.Join(t.TempDir(), "notes")
	go func() {
		out, code := b.fabric(context.WithoutCancel(t.Context()), t, long, append(args, "--seconds", "3600", "--max-duration", "3h")...)
		ended <- fmt.Sprintf("exit %d\n%s", code, out)
	}()
	b.waitCondition(t, "a measurement", func() bool { return strings.Contains(read(t, long), "measuring") })
	b.applied(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: job, namespace: default}, spec: {
		terminationGracePeriodSeconds: 0, containers: [{name: main, image: %q, command: [sleep, infinity],
		resources: {limits: {%s: 8}}}]}}`, cluster.BusyboxImage, gpu))
	b.kubectl(t, "wait", "pod/job", "--for=condition=Ready", "--timeout="+patience.String())
	t.Log("the job, made and started: ", b.kubectl(t, "get", "pod", "job", "-o",
		"jsonpath={.metadata.creationTimestamp} {.status.containerStatuses[0].state.running.startedAt}"))
	if out := <-ended; !strings.Contains(out, "exit 0") || !strings.Contains(out, "Not tested: node1: it gave way to a job") {
		t.Errorf("the test after the job came: %s%s", out, read(t, long))
	}
	b.nothingLeft(t)

	// While the job runs, the node is not idle.
	out, code = b.fabric(t.Context(), t, notes, append(args, "--seconds", "1")...)
	if code != 2 || !strings.Contains(out, "Not tested: node1: it is not idle") {
		t.Errorf("on a busy node: exit %d\n%s%s", code, out, read(t, notes))
	}
	b.kubectl(t, "delete", "pod", "job", "--now")

	before := len(b.reportOf(t, b.Node()).Status.Tests[0].Results)
	b.kubectl(t, "-n", suite, "create", "job", "now", "--from=cronjob/heddle-fabric-test")
	b.waitCondition(t, "a result of the CronJob", func() bool {
		return len(b.reportOf(t, b.Node()).Status.Tests[0].Results) > before
	})
}

// fabric runs the CLI and returns what it prints, and its exit code. stderr is a file.
func (b *bed) fabric(ctx context.Context, t *testing.T, stderr string, args ...string) (out string, code int) {
	t.Helper()
	heddle, err := b.installer.Build(ctx, "heddle")
	if err != nil {
		t.Error(err)
		return "", -1
	}
	notes, err := os.Create(stderr)
	if err != nil {
		t.Error(err)
		return "", -1
	}
	defer notes.Close()
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, heddle, args...)
	cmd.Env = []string{"KUBECONFIG=" + b.Kubeconfig()}
	cmd.Stdout, cmd.Stderr = &stdout, notes
	_ = cmd.Run() // Its exit code is returned.
	return stdout.String(), cmd.ProcessState.ExitCode()
}

// read returns the text of a file, none if it does not exist.
func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

// measured checks the results in the NodeTopology and the Node, and that the slow port is a finding.
func (b *bed) measured(t *testing.T) {
	t.Helper()
	tests := b.reportOf(t, b.Node()).Status.Tests
	if len(tests) != 8 {
		t.Fatalf("results of %d ports", len(tests))
	}
	for i := range tests {
		want := v1alpha1.LinkResult{Gbps: 388, ExpectedGbps: 388, LatencyNanoseconds: 1960}
		if tests[i].HCA == "mlx5_3" {
			want.Gbps, want.Fault, want.What, want.Value, want.Limit = 97, "hca", "bandwidth", "97 Gb/s", "310 Gb/s"
		}
		got := tests[i].Results[0]
		want.Time, want.Versions = got.Time, got.Versions
		if got != want || !strings.Contains(got.Versions, "perftest 6.10") && got.Versions != "" {
			t.Errorf("%s: %+v, want %+v", tests[i].HCA, got, want)
		}
	}
	if labels := b.node(t, b.Node()).Labels; labels[wellknown.FabricBandwidth] != "97" || labels[wellknown.FabricTested] == "" {
		t.Errorf("labels: %v", labels)
	}
	eventually(t, func() string {
		for _, c := range b.node(t, b.Node()).Status.Conditions {
			if c.Type == wellknown.ConditionFabric && strings.Contains(c.Message, "mlx5_3 port 1 (rail 1) is degraded: bandwidth below 310 Gb/s (heddle fabric test: hca)") {
				return ""
			}
		}
		return "no condition with the slow port"
	})
}

// nothingLeft waits until no pod and no Lease of a test is left.
func (b *bed) nothingLeft(t *testing.T) {
	t.Helper()
	b.waitCondition(t, "an end of the test's objects", func() bool {
		return b.kubectl(t, "-n", suite, "get", "pods,leases", "-l", "app.kubernetes.io/name=heddle-fabric-test", "-o", "name") == ""
	})
}

func (b *bed) installFabric(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := b.installer.Image(ctx, b.Cluster, "heddle", topoMasterName, nodeName, schedulerName); err != nil {
		t.Fatal(err)
	}
	program, archive := filepath.Join(t.TempDir(), "perftest"), filepath.Join(t.TempDir(), "perftest.tar")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./perftest")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in for perftest: %v\n%s", err, out)
	}
	files := map[string]string{"/usr/bin/ib_write_bw": program, "/usr/bin/ib_read_lat": program}
	for tool := range strings.FieldsSeq("cat sh sleep timeout tr true") {
		file, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		files["/usr/bin/"+tool] = file
	}
	err := image.Pack(ctx, archive, image.Spec{Name: perftestImage, Files: files, Env: []string{"PATH=/usr/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.LoadImage(ctx, archive); err != nil {
		t.Fatal(err)
	}
	dump, nodes := b.path("test/machines/dgx-h100.json"), filepath.Join(b.Dir(), "fabric-devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	if _, err := b.NodeExec(ctx, "mkdir", "-p", "/run/cdi"); err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(fabricValues), 0o600); err != nil {
		t.Fatal(err)
	}
	b.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	b.kubectl(t, "-n", suite, "create", "configmap", "fabric", "--from-file=machine.json="+dump)
	b.applied(t, `{apiVersion: v1, kind: Service, metadata: {name: fabric-map, namespace: `+suite+`}, spec: {clusterIP: `+smokeMapIP+`,
		selector: {app.kubernetes.io/name: `+topoMasterName+`}, ports: [{port: 9001, targetPort: api}]}}`)
	if err := b.installer.Chart(ctx, b.Cluster, "--values", values, "--set", "gpuDevice.replayDevices="+nodes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{
				{"get", "pods", "-A", "-o", "wide"},
				{"-n", suite, "logs", "deploy/" + schedulerName, "--tail=40"},
				{"get", "events", "-A", "-o", "custom-columns=O:.involvedObject.name,R:.reason,M:.message"},
				{"-n", suite, "logs", "job/now"},
			} {
				out, err := b.Kubectl(context.WithoutCancel(ctx), args...)
				t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	})
}
