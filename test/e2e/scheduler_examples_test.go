//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/cluster"
)

func (b *bed) example(file string) string { return b.path("deploy/examples/" + file) }

// startTrainingOperator runs Kubeflow's Training Operator. Its webhook only validates;
// it waits for the webhook's certificate, which a Secret's volume brings to it.
func (b *bed) startTrainingOperator(t *testing.T) {
	t.Helper()
	program, module := b.program(t, "test/cluster/build/training-operator", "github.com/kubeflow/training-operator/cmd/training-operator.v1")
	b.kubectl(t, "apply", "--server-side", "-k", filepath.Join(module, "manifests/base/crds"))
	b.kubectl(t, "wait", "crd", "--all", "--for=condition=Established", "--timeout=3m")
	const namespace, secret = "kubeflow", "training-operator-webhook-cert"
	b.applied(t, fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: Secret, metadata: {namespace: %[1]s, name: %[2]s}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: validator.training-operator.kubeflow.org}}
`, namespace, secret))
	t.Cleanup(func() {
		b.kubectlAfter(t, "delete", "namespace", namespace)
		b.kubectlAfter(t, "delete", "validatingwebhookconfiguration", "validator.training-operator.kubeflow.org")
	})
	certs := t.TempDir()
	const script = `mount -t tmpfs tmpfs /mnt && mkdir /mnt/certs && mount --bind "$1" /mnt/certs && mount -t tmpfs tmpfs /tmp &&
mkdir /tmp/k8s-webhook-server && ln -s /mnt/certs /tmp/k8s-webhook-server/serving-certs && shift && exec "$@"`
	b.runWorkload(t, "unshare", "--mount", "sh", "-c", script, "sh", certs, program,
		"--enable-scheme=tfjob", "--enable-scheme=mpijob", "--metrics-bind-address=127.0.0.1:19482",
		"--health-probe-bind-address=127.0.0.1:19481", "--webhook-server-port=19480")
	eventually(t, func() string {
		got, err := b.client.CoreV1().Secrets(namespace).Get(t.Context(), secret, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for name, text := range got.Data {
			if err := os.WriteFile(filepath.Join(certs, name), text, 0o600); err != nil {
				return err.Error()
			}
		}
		return map[bool]string{true: "the operator has written no certificate"}[len(got.Data) == 0]
	})
}

// operator applies an example and waits until its operator has made the pods.
func (f *fleet) operator(t *testing.T, job string, pods int) {
	t.Helper()
	f.startTrainingOperator(t)
	f.kubectl(t, "-n", f.namespace, "apply", "-f", f.example(job))
	eventually(t, func() string {
		if n := len(f.podsOf(t, "")); n != pods {
			return fmt.Sprintf("the operator has made %d of %d pods", n, pods)
		}
		return ""
	})
}

// TestTFSmokeGPU is the documented TensorFlow example, with the real operator: 4 GPUs in the cluster, 8
// wanted. Without a gang the PS and two workers would run and hold 4 GPUs idle.
func TestTFSmokeGPU(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	f.gpus(t, "tf-a", 4, nil)
	const job, pods = "tf-smoke-gpu", 5
	f.operator(t, "tf-smoke-gpu.yaml", pods)
	t.Log(f.rejected(t, job, pods, "rejected by podgroup tf-smoke-gpu"))
	for _, p := range f.podsOf(t, job) {
		if p.Spec.SchedulerName != schedulerName || p.Status.Phase != corev1.PodPending {
			t.Errorf("%s: scheduler %s, phase %s", p.Name, p.Spec.SchedulerName, p.Status.Phase)
		}
	}
	f.gpus(t, "tf-b", 4, nil)
	nodes := f.running(t, job, pods)
	workers := map[string]int{}
	for _, p := range f.podsOf(t, job+"-worker") {
		workers[p.Spec.NodeName]++
	}
	if workers["tf-a"] != 2 || workers["tf-b"] != 2 {
		t.Errorf("workers on %v, all on %v", workers, nodes)
	}
}

// TestDocumentedGPUPod applies the example of two GPUs as it is: it names no
// scheduler, and goes where the GPUs go together best.
func TestDocumentedGPUPod(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	topology := func(score, loss int) map[string]string {
		return map[string]string{"heddle.dev/gpu-topology": fmt.Sprintf(`{"2": {"score": %d, "loss": %d, "hcas": 2}}`, score, loss)}
	}
	f.gpus(t, "one-a", 8, topology(100, 90))
	f.gpus(t, "one-b", 8, topology(100, 10))
	f.gpus(t, "one-c", 8, nil)
	f.kubectl(t, "-n", f.namespace, "apply", "-f", f.example("gpu-pod.yaml"))
	nodes := f.running(t, "sample-pod", 1)
	if nodes["one-b"] != 1 {
		t.Errorf("it runs on %v", nodes)
	}
	if got := f.podsOf(t, "sample-pod")[0].Spec.SchedulerName; got != schedulerName {
		t.Errorf("it went to %s", got)
	}
}

// TestDocumentedMPIJob is the NCCL example, with the real operator: its workers land on the nodes whose
// labels they ask for, its launcher among the CPUs. It is no gang.
func TestDocumentedMPIJob(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	err := f.Apply(t.Context(), strings.ReplaceAll(`
{apiVersion: v1, kind: PersistentVolume, metadata: {name: NS}, spec: {capacity: {storage: 1Gi},
  accessModes: [ReadWriteMany], storageClassName: "", hostPath: {path: /nowhere}, claimRef: {namespace: NS, name: train}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: train, namespace: NS}, spec: {volumeName: NS,
  accessModes: [ReadWriteMany], storageClassName: "", resources: {requests: {storage: 1Gi}}}}`, "NS", f.namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "pv", f.namespace, "--wait=false") })
	node := func(name string, gpus int, labels map[string]string) cluster.SimulatedNode {
		n := withGPUs(name, gpus, nil)
		n.Labels, n.Capacity["rdma/hca_shared_devices_ib"] = labels, strconv.Itoa(gpus)
		return n
	}
	h800 := map[string]string{"cloud.ebtech.com/gpu": "H800_NVLINK_80GB"}
	f.nodes(t, node("nccl-a", 8, maps.Clone(h800)), node("nccl-b", 8, maps.Clone(h800)), node("nccl-other", 8, nil),
		node("nccl-cpu", 0, map[string]string{"cloud.ebtech.com/cpu": "amd-epyc-milan"}))
	const job, pods = "nccl-test", 3
	f.operator(t, "mpijob-nccl.yaml", pods)
	nodes := f.running(t, job, pods)
	if nodes["nccl-a"] != 1 || nodes["nccl-b"] != 1 || nodes["nccl-cpu"] != 1 {
		t.Errorf("it runs on %v", nodes)
	}
	for _, p := range f.podsOf(t, "nccl-test-worker") {
		if p.Spec.SchedulerName != schedulerName {
			t.Errorf("%s went to %s", p.Name, p.Spec.SchedulerName)
		}
	}
}

// TestGangLabels applies the example of the spellings as it is: every gang is one,
// none starts by half, and all run where there is room.
func TestGangLabels(t *testing.T) {
	f := idleFleet(t, shared(t))
	err := f.Apply(t.Context(), f.helm(t, "template", "x", "deploy/helm/heddle", "-s", "templates/scheduler/podgroups.yaml",
		"--set", "gpuScheduler.enabled=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "crd", podGroupCRD, "--ignore-not-found") })
	f.kubectl(t, "wait", "--for=condition=Established", "crd/"+podGroupCRD, "--timeout=3m")
	f.start(t)
	f.assign(t)
	// Too little for any of them.
	f.gpus(t, "spelled-a", 1, nil)
	there := *f
	there.namespace = metav1.NamespaceDefault
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "--wait=false", "-f", f.example("gang-labels.yaml")) })
	f.kubectl(t, "-n", there.namespace, "apply", "-f", f.example("gang-labels.yaml"))
	gangs := map[string]int{"nginx": 3, "gang-labels": 3, "gang-example": 2, "gang-example1": 2, "gang-example2": 2}
	for gang, n := range gangs {
		why := there.rejected(t, gang+"-", n, "rejected by podgroup "+gang)
		t.Log(why)
	}
	f.later(t, "later")
	if on := there.bound(t, "gang-"); len(on) > 0 {
		t.Errorf("without room %v", on)
	}
	f.gpus(t, "spelled-b", 12, nil)
	for gang, n := range gangs {
		there.running(t, gang+"-", n)
	}
	// gang-labels counts members that run.
	before := there.uids(t, "gang-labels-")
	f.kubectl(t, "-n", there.namespace, "delete", "pod", "gang-labels-1")
	there.again(t, "gang-labels-", 3, before, "gang-labels-1")
}
