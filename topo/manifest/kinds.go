package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// kinds returns how each kind makes pods, by the fields of Kubernetes 1.37, JobSet v1alpha2, LeaderWorkerSet v1,
// Kubeflow v1 and v2beta1, Kubeflow Trainer v1alpha1, Volcano v1alpha1 and KubeRay v1.
func kinds() map[string]func(*builder) {
	return map[string]func(*builder){
		"Pod": pod, "Deployment": replicas, "ReplicaSet": replicas, "StatefulSet": replicas, "Job": job,
		"JobSet": jobSet, "LeaderWorkerSet": leaderWorkerSet,
		"MPIJob": kubeflow, "PyTorchJob": kubeflow, "TFJob": kubeflow, "TrainJob": trainJob,
		"RayCluster": rayCluster, "RayJob": rayCluster,
	}
}

// number is a field with a number of pods or groups, 1 if it is absent. No decoder takes a negative or a huge one.
type number = *uint16

func orOne(n number) int { return int(ptr.Deref(n, 1)) }

// task is a template with the number of its pods.
type task struct {
	Name     string                 `json:"name"`
	Replicas number                 `json:"replicas"`
	Template corev1.PodTemplateSpec `json:"template"`
}

func pod(b *builder) {
	t := corev1.PodTemplateSpec{ObjectMeta: b.object.ObjectMeta}
	b.spec(&t.Spec)
	b.make("pod", &t, 1, "", "", nil)
	if b.err == nil {
		b.set.Pods[len(b.set.Pods)-1].Name = b.object.Name
	}
}

func replicas(b *builder) {
	var t task
	b.spec(&t)
	b.make("spec.template", &t.Template, orOne(t.Replicas), "", "", nil)
}

// jobSpec is the spec of a Job.
type jobSpec struct {
	Parallelism number                 `json:"parallelism"`
	Completions number                 `json:"completions"`
	Template    corev1.PodTemplateSpec `json:"template"`
}

// parallel returns how many pods of the Job run at once.
func (s *jobSpec) parallel() int {
	return int(min(ptr.Deref(s.Parallelism, 1), ptr.Deref(s.Completions, math.MaxUint16)))
}

func job(b *builder) {
	if b.object.GroupVersionKind().Group == "batch.volcano.sh" {
		volcanoJob(b)
		return
	}
	var spec jobSpec
	b.spec(&spec)
	b.make("spec.template", &spec.Template, spec.parallel(), "", wellknown.IndexJob,
		map[string]string{wellknown.JobName: b.object.Name})
}

func jobSet(b *builder) {
	var spec struct {
		ReplicatedJobs []struct {
			Name     string `json:"name"`
			Replicas number `json:"replicas"`
			Template struct {
				Spec jobSpec `json:"spec"`
			} `json:"template"`
		} `json:"replicatedJobs"`
	}
	b.spec(&spec)
	for i := range spec.ReplicatedJobs {
		r, path := &spec.ReplicatedJobs[i], fmt.Sprintf("spec.replicatedJobs[%d].template.spec.template", i)
		pods := r.Template.Spec.parallel()
		for n := 0; n < orOne(r.Replicas) && pods > 0 && b.err == nil; n++ {
			name := fmt.Sprint(r.Name, "-", n)
			b.make(path, &r.Template.Spec.Template, pods, name, wellknown.IndexJob, map[string]string{
				wellknown.JobSetName: b.object.Name, wellknown.TaskJobSet: r.Name, wellknown.JobOfJobSet: fmt.Sprint(n),
				wellknown.JobName: b.object.Name + "-" + name,
			})
		}
	}
}

func leaderWorkerSet(b *builder) {
	var spec struct {
		Replicas number `json:"replicas"`
		Of       struct {
			Leader *corev1.PodTemplateSpec `json:"leaderTemplate"`
			Worker corev1.PodTemplateSpec  `json:"workerTemplate"`
			Size   number                  `json:"size"`
		} `json:"leaderWorkerTemplate"`
	}
	b.spec(&spec)
	size := orOne(spec.Of.Size)
	for n := range orOne(spec.Replicas) {
		for i := 0; i < size && b.err == nil; i++ {
			path, name, t := "spec.leaderWorkerTemplate.workerTemplate", fmt.Sprint(n, "-", i), spec.Of.Worker
			if i == 0 {
				path, name, t = "spec.leaderWorkerTemplate.leaderTemplate", fmt.Sprint(n), ptr.Deref(spec.Of.Leader, t)
			}
			b.make(path, annotate(t, wellknown.LWSSize, fmt.Sprint(size)), 1, name, "", map[string]string{
				wellknown.LWSName: b.object.Name, wellknown.LWSGroupIndex: fmt.Sprint(n),
				wellknown.IndexLeader: fmt.Sprint(i),
			})
		}
	}
}

// kubeflow reads the jobs of the training operator, and of the MPI operator.
func kubeflow(b *builder) {
	type tasks map[string]task
	var spec struct {
		MPI       tasks `json:"mpiReplicaSpecs"`
		PyTorch   tasks `json:"pytorchReplicaSpecs"`
		TF        tasks `json:"tfReplicaSpecs"`
		RunPolicy struct {
			SchedulingPolicy struct {
				MinAvailable number `json:"minAvailable"`
			} `json:"schedulingPolicy"`
		} `json:"runPolicy"`
	}
	b.spec(&spec)
	all := map[string]tasks{"MPIJob": spec.MPI, "PyTorchJob": spec.PyTorch, "TFJob": spec.TF}[b.object.Kind]
	at := "spec." + strings.ToLower(strings.TrimSuffix(b.object.Kind, "Job")) + "ReplicaSpecs"
	if len(all) == 0 {
		b.fail(fmt.Errorf("%s is missing", at))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t, role := all[name], strings.ToLower(name)
		labels := map[string]string{
			wellknown.KubeflowJob: b.object.Name, wellknown.TaskKubeflow: role, wellknown.TaskMPI: role,
		}
		path := at + "." + name + ".template"
		b.make(path, &t.Template, orOne(t.Replicas), name, wellknown.IndexKubeflow, labels)
	}
	if least := spec.RunPolicy.SchedulingPolicy.MinAvailable; least != nil {
		b.group(orOne(least), nil)
	}
}

// trainJob counts spec.trainer: the pods' template is the cluster's, in a runtime.
func trainJob(b *builder) {
	var spec struct {
		RuntimeRef struct {
			Name string `json:"name"`
		} `json:"runtimeRef"`
		Trainer struct {
			NumNodes         number                      `json:"numNodes"`
			ResourcesPerNode corev1.ResourceRequirements `json:"resourcesPerNode"`
		} `json:"trainer"`
	}
	b.spec(&spec)
	b.job.Note = fmt.Sprintf("counted by spec.trainer: what the runtime %s adds is not in the manifest",
		cmp.Or(spec.RuntimeRef.Name, "?"))
	var t corev1.PodTemplateSpec
	t.Spec.Containers = []corev1.Container{{Name: "node", Resources: spec.Trainer.ResourcesPerNode}}
	b.make("spec.trainer", &t, orOne(spec.Trainer.NumNodes), "node", wellknown.IndexJob, map[string]string{
		wellknown.JobSetName: b.object.Name, wellknown.TaskJobSet: "node", wellknown.JobOfJobSet: "0",
	})
}

// volcanoJob reads a Job of Volcano, which has one PodGroup.
func volcanoJob(b *builder) {
	var spec struct {
		MinAvailable number `json:"minAvailable"`
		Tasks        []task `json:"tasks"`
	}
	b.spec(&spec)
	for i := range spec.Tasks {
		t := &spec.Tasks[i]
		name := cmp.Or(t.Name, fmt.Sprint("default", i))
		template := annotate(t.Template, wellknown.VolcanoGroup, b.object.Name)
		path, labels := fmt.Sprintf("spec.tasks[%d].template", i), map[string]string{wellknown.TaskVolcano: name}
		b.make(path, template, orOne(t.Replicas), name, wellknown.IndexVolcano, labels)
	}
	least := b.job.Pods
	if spec.MinAvailable != nil {
		least = orOne(spec.MinAvailable)
	}
	b.group(least, b.object.Annotations)
}

func rayCluster(b *builder) {
	type cluster struct {
		Head    task `json:"headGroupSpec"`
		Workers []struct {
			task

			Name  string `json:"groupName"`
			Least uint16 `json:"minReplicas"`
			Hosts number `json:"numOfHosts"`
		} `json:"workerGroupSpecs"`
	}
	var spec struct {
		cluster
		// Of is a RayJob's.
		Of *cluster `json:"rayClusterSpec"`
	}
	b.spec(&spec)
	c, at := &spec.cluster, "spec."
	if spec.Of != nil {
		c, at = spec.Of, "spec.rayClusterSpec."
	}
	labels := func(kind string) map[string]string {
		return map[string]string{wellknown.RayCluster: b.object.Name, wellknown.TaskRay: kind}
	}
	b.make(at+"headGroupSpec.template", &c.Head.Template, 1, "head", "", labels("head"))
	for i := range c.Workers {
		w := &c.Workers[i]
		n := int(ptr.Deref(w.Replicas, w.Least)) * orOne(w.Hosts)
		path := fmt.Sprintf("%sworkerGroupSpecs[%d].template", at, i)
		b.make(path, &w.Template, n, cmp.Or(w.Name, "workers"), "", labels("worker"))
	}
}
