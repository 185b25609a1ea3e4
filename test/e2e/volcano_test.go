//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/programtest"
)

const volcanoModule = "cmd/heddle-vc-scheduler"

// volcano is a cluster with Volcano's own controllers and webhooks, beside a fleet of
// simulated nodes; its scheduler is heddle's.
type volcano struct {
	*fleet
	scheduler string
	process   *exec.Cmd
}

// newVolcano starts all but the scheduler.
func newVolcano(t *testing.T) *volcano {
	t.Helper()
	f := &fleet{bed: shared(t), namespace: "volcano-" + strconv.FormatInt(time.Now().UnixNano()%1e9, 36)}
	f.kubectl(t, "create", "namespace", f.namespace)
	f.kubectl(t, "cordon", f.Node())
	t.Cleanup(func() {
		f.kubectlAfter(t, "uncordon", f.Node())
		f.kubectlAfter(t, "delete", "namespace", f.namespace, "--wait=false")
	})
	v := &volcano{fleet: f}
	var err error
	if v.scheduler, err = f.installer.Build(t.Context(), "vc-scheduler"); err != nil {
		t.Fatal(err)
	}
	controllers, module := f.program(t, volcanoModule, "volcano.sh/volcano/cmd/controller-manager")
	webhooks, _ := f.program(t, volcanoModule, "volcano.sh/volcano/cmd/webhook-manager")
	for _, crds := range []string{"volcano", "jobflow"} {
		f.kubectl(t, "apply", "--server-side", "-f", filepath.Join(module, "config/crd", crds, "bases"))
	}
	f.kubectl(t, "wait", "crd", "--all", "--for=condition=Established", "--timeout=3m")
	f.kubectl(t, "create", "namespace", "volcano-system")
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "namespace", "volcano-system", "--wait=false") })
	f.runWorkload(t, controllers, "--kubeconfig", f.Kubeconfig(), "--leader-elect=false", "--listen-address=127.0.0.1:19501")
	v.startWebhooks(t, webhooks, filepath.Join(module, "installer/volcano-development.yaml"))
	return v
}

// startWebhooks runs Volcano's webhooks about jobs where the API server is, at an address
// in place of a Service.
func (v *volcano) startWebhooks(t *testing.T, program, manifests string) {
	t.Helper()
	const port = 19503
	certs := t.TempDir()
	pair(t, certs)
	certificate := filepath.Join(certs, "tls.crt")
	ca, err := os.ReadFile(certificate)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if !strings.Contains(document, "\n  name: volcano-admission-service-jobs-") {
			continue
		}
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		webhook := object["webhooks"].([]any)[0].(map[string]any)
		path := webhook["clientConfig"].(map[string]any)["service"].(map[string]any)["path"]
		webhook["clientConfig"] = map[string]any{
			"url": fmt.Sprintf("https://127.0.0.1:%d%s", port, path), "caBundle": base64.StdEncoding.EncodeToString(ca),
		}
		out, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		v.applied(t, string(out))
		kind, name := fmt.Sprint(object["kind"]), fmt.Sprint(object["metadata"].(map[string]any)["name"])
		t.Cleanup(func() { v.kubectlAfter(t, "delete", kind, name) })
	}
	cmd, err := v.NodeCommand(context.WithoutCancel(t.Context()), program, "--kubeconfig", v.NodeKubeconfig(),
		"--enabled-admission=/jobs/mutate,/jobs/validate", "--port="+strconv.Itoa(port), "--ca-cert-file="+certificate,
		"--tls-cert-file="+certificate, "--tls-private-key-file="+filepath.Join(certs, "tls.key"),
		fmt.Sprintf("--webhook-url=https://127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	background(t, cmd)
}

// schedule runs the scheduler with one of the documented configurations, and ends one
// that runs.
func (v *volcano) schedule(t *testing.T, document int, edit *strings.Replacer) {
	t.Helper()
	text, err := os.ReadFile(v.example("volcano-scheduler-conf.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "volcano-scheduler.conf")
	configuration := strings.Split(string(text), "\n---\n")[document]
	if err := os.WriteFile(file, []byte(edit.Replace(configuration)), 0o600); err != nil {
		t.Fatal(err)
	}
	if v.process == nil {
		t.Cleanup(func() { end(t, v.process) })
	} else {
		end(t, v.process)
	}
	v.process = exec.CommandContext(context.WithoutCancel(t.Context()), v.scheduler, "--kubeconfig", v.Kubeconfig(),
		"--leader-elect=false", "--listen-address=127.0.0.1:19502", "--scheduler-conf", file, "--cache-dumper=false")
	v.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	v.process.Stderr = t.Output()
	if err := v.process.Start(); err != nil {
		t.Fatal(err)
	}
}

// completes applies a file and waits until its job is complete: on a simulated node
// a pod is that when it has run. It returns the nodes that its pods got, by name.
func (v *volcano) completes(t *testing.T, file, job string, pods int) map[string]string {
	t.Helper()
	// The webhooks answer a moment after they started, and the queue is made by then.
	eventually(t, func() string {
		if out, err := v.Kubectl(t.Context(), "-n", v.namespace, "apply", "-f", file); err != nil {
			return err.Error() + out
		}
		return ""
	})
	eventually(t, func() string {
		phase := v.kubectl(t, "-n", v.namespace, "get", "jobs.batch.volcano.sh", job, "-o", "jsonpath={.status.state.phase}")
		if phase == "Completed" {
			return ""
		}
		var why []string
		for _, p := range v.podsOf(t, job) {
			why = append(why, p.Name+": "+whyNot(&p))
		}
		return "phase " + phase + "\n" + strings.Join(why, "\n")
	})
	// A simulated master can end before the last worker is bound, and Volcano then deletes
	// that one: the Event about its binding has its node.
	var nodes map[string]string
	on := regexp.MustCompile(` to (?:node )?(fly-\w+)`)
	eventually(t, func() string {
		list, err := v.client.CoreV1().Events(v.namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod"})
		if err != nil {
			return err.Error()
		}
		nodes = map[string]string{}
		for i := range list.Items {
			found := on.FindStringSubmatch(list.Items[i].Message)
			if name := list.Items[i].InvolvedObject.Name; found != nil && strings.HasPrefix(name, job) {
				nodes[name] = found[1]
			}
		}
		if len(nodes) != pods {
			return fmt.Sprintf("nodes of %d pods: %v", pods, nodes)
		}
		return ""
	})
	return nodes
}

// TestVolcano runs the documented jobs with vc-scheduler, and Volcano's own controllers
// and webhooks: one whole in a super-node by the map of a real topo-master, without GPUs, in a queue, where GPUs
// go together best, and on the nodes that are kept for its purpose. Halfway the nodes become MetaX's.
func TestVolcano(t *testing.T) {
	const port = 19505
	v := newVolcano(t)
	_, fly := v.dragonflies(t, port, 2)
	// One of the two super-nodes has room for seven pods.
	cordoned := slices.Sorted(maps.Keys(fly))[0]
	v.kubectl(t, "cordon", cordoned)
	v.schedule(t, 0, strings.NewReplacer("- name: gpu-podaffinity",
		fmt.Sprintf("- name: gpu-podaffinity\n    arguments: {map.address: 'http://127.0.0.1:%d/node_group'}", port)))

	v.superNode(t, v.example("volcano-supernode-job.yaml"), "pytorch-demo", fly, cordoned)
	v.completes(t, v.example("volcano-mpi-job.yaml"), "mpi-job", 3)
	v.queue(t)

	v.kubectl(t, "-n", v.namespace, "delete", "jobs.batch.volcano.sh", "pytorch-demo", "--wait")
	v.kubectl(t, "-n", v.namespace, "delete", "events", "--all")
	const metaX = `{"nvidia.com/gpu": null, "metax-tech.com/gpu": "8"}`
	for node := range fly {
		v.kubectl(t, "patch", "node", node, "--subresource=status", "--type=merge",
			"-p", `{"status": {"capacity": `+metaX+`, "allocatable": `+metaX+`}}`)
	}
	v.superNode(t, v.metaX(t, "volcano-supernode-job.yaml"), "pytorch-metax", fly, cordoned)

	best := slices.Sorted(maps.Keys(fly))[5]
	for node := range fly {
		table := `{"2":{"score":0,"loss":400}}`
		if node == best {
			table = `{"2":{"score":400,"loss":0}}`
		}
		v.kubectl(t, "annotate", "node", node, wellknown.GPUTopology+"="+table)
	}
	v.schedule(t, 1, strings.NewReplacer())
	for pod, node := range v.completes(t, v.metaX(t, "volcano-job.yaml"), "job-demo", 2) {
		if node != best {
			t.Errorf("%s is on %s, and GPUs go together best on %s", pod, node, best)
		}
	}
	v.kubectl(t, "uncordon", cordoned)
	v.nodes(t, withGPUs("fly-inference", 0, nil), withGPUs("fly-training", 0, nil))
	v.pool(t, "inference")
	v.pool(t, "training")
	for pod, node := range v.completes(t, v.example("metax/training-job.yaml"), "training-job", 1) {
		if node != "fly-training" {
			t.Errorf("%s is on %s", pod, node)
		}
	}
}

// superNode runs the job of 64 GPUs: it is in the super-node without a cordoned node, in the order of ranks.
func (v *volcano) superNode(t *testing.T, file, job string, fly map[string]string, cordoned string) {
	t.Helper()
	nodes := v.completes(t, file, job, 8)
	for pod, node := range nodes {
		if fly[node] == fly[cordoned] {
			t.Errorf("%s is on %s of %s, which has no room for the job", pod, node, fly[node])
		}
	}
	order := []string{nodes[job+"-master-0"]}
	for i := range 7 {
		order = append(order, nodes[fmt.Sprint(job, "-worker-", i)])
	}
	if !slices.IsSorted(order) {
		t.Errorf("the ranks are on %v", order)
	}
}

// metaX returns the path of an example with the names of MetaX's resources and annotations. A job pytorch-demo gets a
// new name: Volcano's controller can attribute late deletions of the earlier job's pods to a new job of that name, and
// drop it.
func (v *volcano) metaX(t *testing.T, example string) string {
	t.Helper()
	text, err := os.ReadFile(v.example(example))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "nvidia.com/") {
		t.Fatalf("%s has no name of NVIDIA's", example)
	}
	file := filepath.Join(t.TempDir(), example)
	edit := strings.NewReplacer("nvidia.com/", "metax-tech.com/", "pytorch-demo", "pytorch-metax")
	if err := os.WriteFile(file, []byte(edit.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// pool has heddle-feature-discovery label and taint a simulated node as one of MetaX's machines, kept for a purpose
// under a company's domain.
func (v *volcano) pool(t *testing.T, usage string) {
	t.Helper()
	discovery, err := v.installer.Build(t.Context(), nodeName)
	if err != nil {
		t.Fatal(err)
	}
	name, configuration := "fly-"+usage, programtest.Config(t, "preset: scheme\ndomains: {company: maip.mxsf.io}\nusage: "+usage+"\n")
	out, err := exec.CommandContext(t.Context(), discovery, "feature-discovery", "--oneshot", "--kubeconfig", v.Kubeconfig(),
		"--node-name", name, "--machine", v.path("test/machines/metax-c500-box.json"), "--config", configuration).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var taints []string
	for _, taint := range v.node(t, name).Spec.Taints {
		taints = append(taints, taint.ToString())
	}
	slices.Sort(taints)
	want := "[maip.mxsf.io/node.usage=" + usage + ":NoSchedule metax-tech.com/gpu.product=MXC500:NoSchedule]"
	if got := fmt.Sprint(taints); got != want {
		t.Fatalf("taints %s, want %s", got, want)
	}
}

// queue runs Volcano's own example with the commands of its document. Volcano's webhook rejects a job for a queue that
// does not exist.
func (v *volcano) queue(t *testing.T) {
	t.Helper()
	v.completes(t, v.example("volcano-queue.yaml"), "job-1", 1)
	t.Cleanup(func() { v.kubectlAfter(t, "delete", "queues.scheduling.volcano.sh", "test", "--wait=false") })
	v.kubectl(t, "-n", v.namespace, "get", "vcjob", "job-1")
	v.kubectl(t, "get", "queues.scheduling.volcano.sh", "test")
}

// dragonflies reports nodes of eight GPUs as a static file places them,
// eight to a dragonfly and two dragonflies to a switchbox, and starts a
// topo-master of that mode.
func (f *fleet) dragonflies(t *testing.T, port, n int) (box, fly map[string]string) {
	t.Helper()
	f.topologyCRD(t)
	box, fly = map[string]string{}, map[string]string{}
	var nodes []cluster.SimulatedNode
	for i := range n {
		for k := range 8 {
			// Names do not show where a node is.
			name := fmt.Sprintf("fly-%02d", k*n+i)
			nodes = append(nodes, withGPUs(name, 8, nil))
			box[name], fly[name] = fmt.Sprint("switchbox-", i/2), fmt.Sprint("dragonfly-", i)
		}
	}
	f.nodes(t, nodes...)
	var reports []*v1alpha1.NodeTopology
	for name := range fly {
		r := reportOf(name, f.node(t, name).UID, "")
		r.Spec = v1alpha1.NodeTopologySpec{Path: []string{box[name], fly[name]}, PathSource: v1alpha1.SourceStatic}
		reports = append(reports, r)
	}
	f.report(t, reports...)
	f.startTopoMaster(t, "flies", port, "--exports", "none", "--config", programtest.Config(t, "topology: {mode: switchbox}\n"))
	return box, fly
}
