//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/topo/gang"
)

// program builds a controller of another project in the module of a folder here, and returns the folder of the
// controller's own module, which has its CRDs.
func (b *bed) program(t *testing.T, folder, name string) (program, module string) {
	t.Helper()
	cache, err := cluster.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(cache, "workloads", strings.ReplaceAll(name, "/", "_"))
	inModule := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		// As for heddle-vc-scheduler, which has the training operator's packages of Kubernetes: they are compiled once.
		flags := []string{"GOWORK=off", "GOFLAGS=-trimpath -tags=grpcnotrace", "CGO_ENABLED=1"}
		cmd.Dir, cmd.Env, cmd.Stderr = b.path(folder), append(os.Environ(), flags...), t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v", args[0], err)
		}
		return strings.TrimSpace(string(out))
	}
	inModule("build", "-ldflags", "-s -w", "-o", program, name)
	return program, inModule("list", "-f", "{{.Module.Dir}}", name)
}

// runWorkload runs such a controller on the host until the test ends.
func (b *bed) runWorkload(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+b.Kubeconfig())
	background(t, cmd)
}

// background runs a command until the test ends.
func background(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	log, err := os.CreateTemp(t.ArtifactDir(), "*.log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the end of its log:\n%s", text[max(0, len(text)-6000):])
		}
	})
}

// startWebhooked runs a controller of kubernetes-sigs whose webhooks make the pods:
// its CRDs, its webhooks by address in place of a Service, and its configuration,
// which is all that is its own.
func (b *bed) startWebhooked(t *testing.T, program, crds, webhooks, api string, port int) {
	t.Helper()
	binary, module := b.program(t, "test/cluster/build/workloads", program)
	b.kubectl(t, "apply", "--server-side", "-f", filepath.Join(module, crds))
	b.kubectl(t, "wait", "crd", "--all", "--for=condition=Established", "--timeout=3m")
	certs := t.TempDir()
	pair(t, certs)
	config := filepath.Join(certs, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: %s
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "127.0.0.1:%d"}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
`, api, port+1, port+2, port, certs), 0o600); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(certs, "tls.crt"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(module, webhooks))
	if err != nil {
		t.Fatal(err)
	}
	prefix := strings.ReplaceAll(program, "/", "-")
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%s: %v", webhooks, err)
		}
		if object == nil {
			continue
		}
		kind := strings.ToLower(fmt.Sprint(object["kind"]))
		name := prefix + "-" + kind
		object["metadata"] = map[string]any{"name": name}
		for _, webhook := range object["webhooks"].([]any) {
			w := webhook.(map[string]any)
			service := w["clientConfig"].(map[string]any)["service"].(map[string]any)
			w["clientConfig"] = map[string]any{
				"url": fmt.Sprintf("https://127.0.0.1:%d%s", port, service["path"]), "caBundle": base64.StdEncoding.EncodeToString(ca),
			}
		}
		out, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		b.applied(t, string(out))
		t.Cleanup(func() { b.kubectlAfter(t, "delete", kind, name) })
	}
	// Where the API server is, which calls it.
	cmd, err := b.NodeCommand(context.WithoutCancel(t.Context()), binary, "--config", config)
	if err != nil {
		t.Fatal(err)
	}
	background(t, cmd)
}

// template is a pod's, of a gang that the annotation declares; it restarts as the
// controller asks.
func template(members, restarts string) string {
	return fmt.Sprintf(`{metadata: {annotations: {heddle.dev/gang: %q, heddle.dev/gang-required-level: leaf}},
    spec: {schedulerName: heddle-scheduler, restartPolicy: %s, containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]}}`,
		members, restarts)
}

// TestGangsOfOtherControllers has the real controllers of Jobs, JobSets and
// LeaderWorkerSets make pods, which one annotation makes a gang: each is in one leaf
// group, its ranks on nodes in order.
func TestGangsOfOtherControllers(t *testing.T) {
	const port = 19431
	f := newFleet(t, fmt.Sprintf("gpuScheduler.map.address=http://127.0.0.1:%d/node_group", port),
		"gpuScheduler.map.interval=500ms")
	at := f.leaves(t, port, map[string][]string{leafA: numbered("jobs-a", 4), leafB: numbered("jobs-b", 4)})
	f.startWebhooked(t, "sigs.k8s.io/jobset", "config/components/crd/bases", "config/components/webhook/manifests.yaml",
		"config.jobset.x-k8s.io/v1alpha1", 19451)
	f.startWebhooked(t, "sigs.k8s.io/lws/cmd", "config/crd/bases", "config/webhook/manifests.yaml",
		"config.lws.x-k8s.io/v1alpha1", 19461)
	t.Run("torchrun.yaml", func(t *testing.T) { f.torchrun(t, at) })
	for _, tt := range []struct {
		kind, api, name, spec string
		// gangs are the sizes of the gangs, by name.
		gangs map[string]int
	}{
		{
			"Job", "batch/v1", "train", "{completionMode: Indexed, parallelism: 4, completions: 4, template: " + template("4", "Never") + "}",
			map[string]int{"train": 4},
		},
		{
			"JobSet", "jobset.x-k8s.io/v1alpha2", "trainset", `{replicatedJobs: [
  {name: leader, template: {spec: {completions: 1, parallelism: 1, template: ` + template("4", "Never") + `}}},
  {name: workers, template: {spec: {completions: 3, parallelism: 3, template: ` + template("4", "Never") + `}}}]}`,
			map[string]int{"trainset": 4},
		},
		{
			"LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "serve",
			"{replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: " + template("true", "Always") + "}}",
			map[string]int{"serve-0": 4, "serve-1": 4},
		},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			manifest := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {namespace: %s, name: %s}\nspec: %s\n",
				tt.api, tt.kind, f.namespace, tt.name, tt.spec)
			// The controller's webhooks answer a moment after it started.
			eventually(t, func() string {
				if err := f.Apply(t.Context(), manifest); err != nil {
					return err.Error()
				}
				return ""
			})
			f.wholeGangs(t, tt.gangs, at)
			f.ends(t, strings.ToLower(tt.kind), tt.name)
		})
	}
}

// torchrun applies the documented example as it is, on nodes with HCAs.
func (f *fleet) torchrun(t *testing.T, at map[string]string) {
	t.Helper()
	for node := range at {
		f.kubectl(t, "patch", "node", node, "--subresource=status", "--type=merge",
			"-p", `{"status": {"capacity": {"rdma/hca_shared_devices_ib": "8"}, "allocatable": {"rdma/hca_shared_devices_ib": "8"}}}`)
	}
	f.kubectl(t, "-n", f.namespace, "apply", "-f", f.example("torchrun.yaml"))
	f.wholeGangs(t, map[string]int{"train": 4}, at)
	for _, pod := range f.podsOf(t, "train-") {
		rank := pod.Labels["batch.kubernetes.io/job-completion-index"]
		if pod.Spec.Subdomain != "train" || pod.Spec.Hostname != "train-"+rank {
			t.Errorf("rank %q is %s.%s", rank, pod.Spec.Hostname, pod.Spec.Subdomain)
		}
	}
	f.ends(t, "job", "train")
}

// ends deletes a workload, and waits until its pods have gone.
func (f *fleet) ends(t *testing.T, kind, name string) {
	t.Helper()
	f.kubectl(t, "delete", kind, "-n", f.namespace, name, "--cascade=foreground")
	eventually(t, func() string {
		if n := len(f.podsOf(t, "")); n > 0 {
			return fmt.Sprintf("%d pods are left", n)
		}
		return ""
	})
}

// wholeGangs waits until gangs are bound, by name and size, and fails if one is in two
// leaf groups, or its ranks are not on nodes in order.
func (f *fleet) wholeGangs(t *testing.T, gangs map[string]int, at map[string]string) {
	t.Helper()
	var found map[string][]*gang.Member
	eventually(t, func() string {
		var wait []string
		found = map[string][]*gang.Member{}
		for _, pod := range f.podsOf(t, "") {
			m, ok := gang.MemberOf(&pod, 8)
			if !ok {
				return pod.Name + " is in no gang"
			}
			if m.Node == "" {
				wait = append(wait, pod.Name+": "+whyNot(&pod))
			}
			_, name, _ := strings.Cut(m.Gang, "/")
			found[name] = append(found[name], m)
		}
		for name, n := range gangs {
			if len(found[name]) != n {
				wait = append(wait, fmt.Sprintf("gang %s has %d of %d pods", name, len(found[name]), n))
			}
		}
		return strings.Join(wait, "\n")
	})
	for name, members := range found {
		gang.OrderMembers(members)
		var nodes []string
		for _, m := range members {
			if nodes = append(nodes, m.Node); at[m.Node] != at[members[0].Node] {
				t.Errorf("gang %s is in two leaf groups", name)
			}
		}
		if !slices.IsSorted(nodes) {
			t.Errorf("the ranks of gang %s are on %v", name, nodes)
		}
	}
}

// TestKueueAdmitsAndHeddlePlaces has Kueue's own controller admit what its quota
// allows, and heddle-scheduler place it; what is beyond the quota has no pods.
func TestKueueAdmitsAndHeddlePlaces(t *testing.T) {
	const port = 19471
	f := newFleet(t, fmt.Sprintf("gpuScheduler.map.address=http://127.0.0.1:%d/node_group", port),
		"gpuScheduler.map.interval=500ms")
	at := f.leaves(t, port, map[string][]string{leafA: numbered("quota-a", 2), leafB: numbered("quota-b", 3)})
	f.startKueue(t)
	eventually(t, func() string {
		err := f.Apply(t.Context(), fmt.Sprintf(`apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: quota}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: quota}
spec:
  namespaceSelector: {}
  resourceGroups:
  - {coveredResources: [nvidia.com/gpu], flavors: [{name: quota, resources: [{name: nvidia.com/gpu, nominalQuota: 24}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team, namespace: %s}
spec: {clusterQueue: quota}
`, f.namespace))
		if err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		f.kubectlAfter(t, "delete", "clusterqueue,resourceflavor", "quota", "--wait=false")
	})
	for name, pods := range map[string]int{"fits": 3, "beyond": 4} {
		f.applied(t, fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: %s, namespace: %s, labels: {kueue.x-k8s.io/queue-name: team}}
spec: {suspend: true, completionMode: Indexed, parallelism: %[3]d, completions: %[3]d, template: %[4]s}
`, name, f.namespace, pods, template(fmt.Sprint(pods), "Never")))
	}
	f.wholeGangs(t, map[string]int{"fits": 3}, at)
	eventually(t, func() string {
		text := f.kubectl(t, "get", "workloads.kueue.x-k8s.io", "-n", f.namespace, "-o",
			`jsonpath={range .items[*]}{.metadata.ownerReferences[0].name}{" "}{.status.conditions[?(@.type=="QuotaReserved")].message}{"\n"}{end}`)
		if !strings.Contains(text, "beyond couldn't assign flavors") {
			return text
		}
		return ""
	})
	if n := len(f.podsOf(t, "beyond")); n > 0 {
		t.Errorf("%d pods of a job beyond the quota", n)
	}
}
