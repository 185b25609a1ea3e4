//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/test/cluster"
)

// trainingJob is a TFJob or an MPIJob, as far as their operator makes pods of it.
type trainingJob struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		TF  map[string]replicas `json:"tfReplicaSpecs"`
		MPI map[string]replicas `json:"mpiReplicaSpecs"`
	} `json:"spec"`
}

type replicas struct {
	Replicas int                    `json:"replicas"`
	Template corev1.PodTemplateSpec `json:"template"`
}

func (b *bed) example(file string) string { return b.path("deploy/examples/" + file) }

// operator makes the pods of an example as the Training Operator makes them,
// which names no scheduler.
func (f *fleet) operator(t *testing.T, file string) (job string, pods int) {
	t.Helper()
	text, err := os.ReadFile(f.example(file))
	if err != nil {
		t.Fatal(err)
	}
	var j trainingJob
	if err := utilyaml.Unmarshal(text, &j); err != nil {
		t.Fatal(err)
	}
	roles, controller := j.Spec.TF, "tfjob-controller"
	if len(roles) == 0 {
		roles, controller = j.Spec.MPI, "mpijob-controller"
	}
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		r, task := roles[role], strings.ToLower(role)
		for i := range r.Replicas {
			p := &corev1.Pod{ObjectMeta: *r.Template.ObjectMeta.DeepCopy(), Spec: *r.Template.Spec.DeepCopy()}
			p.Name, p.Namespace = fmt.Sprintf("%s-%s-%d", j.Metadata.Name, task, i), f.namespace
			if p.Labels == nil {
				p.Labels = map[string]string{}
			}
			maps.Copy(p.Labels, map[string]string{
				"training.kubeflow.org/job-name": j.Metadata.Name, "training.kubeflow.org/operator-name": controller,
				"training.kubeflow.org/replica-type": task, "training.kubeflow.org/replica-index": strconv.Itoa(i),
			})
			f.create(t, p)
			pods++
		}
	}
	return j.Metadata.Name, pods
}

// TestTFSmokeGPU is the documented TensorFlow example: 4 GPUs in the cluster, 8
// wanted. Without a gang the PS and two workers would run and hold 4 GPUs idle.
func TestTFSmokeGPU(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	f.gpus(t, "tf-a", 4, nil)
	job, pods := f.operator(t, "tf-smoke-gpu.yaml")
	if job != "tf-smoke-gpu" || pods != 5 {
		t.Fatalf("the example is %s of %d pods", job, pods)
	}
	t.Log(f.rejected(t, job, pods, "rejected by podgroup tf-smoke-gpu"))
	for _, p := range f.podsOf(t, job) {
		if p.Spec.SchedulerName != schedulerName || p.Status.Phase != corev1.PodPending {
			t.Errorf("%s: scheduler %s, phase %s", p.Name, p.Spec.SchedulerName, p.Status.Phase)
		}
	}
	f.gpus(t, "tf-b", 4, nil)
	nodes := f.running(t, 30*time.Second, job, pods)
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
	nodes := f.running(t, 30*time.Second, "sample-pod", 1)
	if nodes["one-b"] != 1 {
		t.Errorf("it runs on %v", nodes)
	}
	if got := f.podsOf(t, "sample-pod")[0].Spec.SchedulerName; got != schedulerName {
		t.Errorf("it went to %s", got)
	}
}

// TestDocumentedMPIJob is the NCCL example: its workers land on the nodes whose
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
	job, pods := f.operator(t, "mpijob-nccl.yaml")
	if job != "nccl-test" || pods != 3 {
		t.Fatalf("the example is %s of %d pods", job, pods)
	}
	nodes := f.running(t, time.Minute, job, pods)
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
	f := idleFleet(t, shared)
	err := f.Apply(t.Context(), f.helm(t, "template", "x", "deploy/helm/heddle", "-s", "templates/scheduler/podgroups.yaml",
		"--set", "gpuScheduler.deploy=true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "crd", podGroupCRD, "--ignore-not-found") })
	f.kubectl(t, "wait", "--for=condition=Established", "crd/"+podGroupCRD, "--timeout=30s")
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
		there.running(t, 30*time.Second, gang+"-", n)
	}
	// gang-labels counts members that run.
	before := there.uids(t, "gang-labels-")
	f.kubectl(t, "-n", there.namespace, "delete", "pod", "gang-labels-1")
	there.again(t, "gang-labels-", 3, before, "gang-labels-1")
}
