package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// kinds returns how each kind makes pods, by the fields of Kubernetes 1.37, JobSet v1alpha2, LeaderWorkerSet v1,
// Kubeflow v1 and v2beta1, Kubeflow Trainer v1alpha1, Volcano v1alpha1 and KubeRay v1.
func kinds() map[string]func(*builder) error {
	return map[string]func(*builder) error{
		"Pod": pod, "Deployment": replicas, "ReplicaSet": replicas, "StatefulSet": replicas, "Job": job,
		"JobSet": jobSet, "LeaderWorkerSet": leaderWorkerSet,
		"MPIJob": kubeflow, "PyTorchJob": kubeflow, "TFJob": kubeflow, "TrainJob": trainJob,
		"RayCluster": rayCluster, "RayJob": rayCluster,
	}
}

func pod(b *builder) error {
	var t corev1.PodTemplateSpec
	if err := json.Unmarshal(b.object.raw, &t); err != nil {
		return err
	}
	if err := b.make("pod", &t, 1, "", "", nil); err != nil {
		return err
	}
	b.set.Pods[len(b.set.Pods)-1].Name = b.object.Name
	return nil
}

func replicas(b *builder) error {
	var spec struct {
		Replicas *int32                 `json:"replicas"`
		Template corev1.PodTemplateSpec `json:"template"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	return b.make("spec.template", &spec.Template, ptr.Deref(spec.Replicas, 1), "", "", nil)
}

func job(b *builder) error {
	if b.object.group() == "batch.volcano.sh" {
		return volcanoJob(b)
	}
	var spec batchv1.JobSpec
	if err := b.spec(&spec); err != nil {
		return err
	}
	return b.make("spec.template", &spec.Template, parallel(&spec), "", wellknown.IndexJob,
		map[string]string{wellknown.JobName: b.object.Name})
}

// parallel returns how many pods of a Job run at once.
func parallel(spec *batchv1.JobSpec) int32 {
	n := ptr.Deref(spec.Parallelism, 1)
	return min(n, ptr.Deref(spec.Completions, n))
}

func jobSet(b *builder) error {
	var spec struct {
		ReplicatedJobs []struct {
			Name     string `json:"name"`
			Replicas *int32 `json:"replicas"`
			Template struct {
				Spec batchv1.JobSpec `json:"spec"`
			} `json:"template"`
		} `json:"replicatedJobs"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	for i := range spec.ReplicatedJobs {
		r, at := &spec.ReplicatedJobs[i], fmt.Sprintf("spec.replicatedJobs[%d].", i)
		jobs, err := times(at+"replicas", r.Replicas)
		if err != nil {
			return err
		}
		for n := range jobs {
			task := fmt.Sprint(r.Name, "-", n)
			err := b.make(at+"template.spec.template", &r.Template.Spec.Template,
				parallel(&r.Template.Spec), task, wellknown.IndexJob, map[string]string{
					wellknown.JobSetName: b.object.Name, wellknown.TaskJobSet: r.Name, wellknown.JobOfJobSet: fmt.Sprint(n),
					wellknown.JobName: b.object.Name + "-" + task,
				})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func leaderWorkerSet(b *builder) error {
	var spec struct {
		Replicas *int32 `json:"replicas"`
		Of       struct {
			Leader *corev1.PodTemplateSpec `json:"leaderTemplate"`
			Worker corev1.PodTemplateSpec  `json:"workerTemplate"`
			Size   *int32                  `json:"size"`
		} `json:"leaderWorkerTemplate"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	const at = "spec.leaderWorkerTemplate."
	groups, err := times("spec.replicas", spec.Replicas)
	size, sizeErr := times(at+"size", spec.Of.Size)
	if err = errors.Join(err, sizeErr); err != nil {
		return err
	}
	leader := spec.Of.Leader
	if leader == nil {
		leader = &spec.Of.Worker
	}
	for n := range groups {
		labels := map[string]string{
			wellknown.LWSName: b.object.Name, wellknown.LWSGroupIndex: fmt.Sprint(n), wellknown.IndexLeader: "0",
		}
		sized := func(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
			return annotate(*t, wellknown.LWSSize, fmt.Sprint(size))
		}
		if err := b.make(at+"leaderTemplate", sized(leader), 1, fmt.Sprint(n), "", labels); err != nil {
			return err
		}
		for i := range size - 1 {
			labels[wellknown.IndexLeader] = strconv.Itoa(int(i) + 1)
			if err := b.make(at+"workerTemplate", sized(&spec.Of.Worker), 1, fmt.Sprint(n, "-", i+1), "", labels); err != nil {
				return err
			}
		}
	}
	return nil
}

// kubeflow reads the jobs of the training operator, and of the MPI operator.
func kubeflow(b *builder) error {
	var fields map[string]json.RawMessage
	var spec struct {
		RunPolicy struct {
			SchedulingPolicy struct {
				MinAvailable *int32 `json:"minAvailable"`
			} `json:"schedulingPolicy"`
		} `json:"runPolicy"`
	}
	if err := errors.Join(b.spec(&fields), b.spec(&spec)); err != nil {
		return err
	}
	at := ""
	for name := range fields {
		if strings.HasSuffix(name, "ReplicaSpecs") {
			at = name
		}
	}
	var tasks map[string]struct {
		Replicas *int32                 `json:"replicas"`
		Template corev1.PodTemplateSpec `json:"template"`
	}
	if at == "" {
		return errors.New("spec has no replica specs, such as mpiReplicaSpecs")
	}
	if err := json.Unmarshal(fields[at], &tasks); err != nil {
		return fmt.Errorf("spec.%s: %w", at, err)
	}
	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		task, path := tasks[name], "spec."+at+"."+name+".template"
		labels := map[string]string{
			wellknown.KubeflowJob: b.object.Name, wellknown.TaskKubeflow: strings.ToLower(name),
			wellknown.TaskMPI: strings.ToLower(name),
		}
		n := ptr.Deref(task.Replicas, 1)
		if err := b.make(path, &task.Template, n, name, wellknown.IndexKubeflow, labels); err != nil {
			return err
		}
	}
	if least := spec.RunPolicy.SchedulingPolicy.MinAvailable; least != nil {
		b.group(*least, nil)
	}
	return nil
}

// trainJob counts spec.trainer: the pods' template is the cluster's, in a runtime.
func trainJob(b *builder) error {
	var spec struct {
		RuntimeRef struct {
			Name string `json:"name"`
		} `json:"runtimeRef"`
		Trainer struct {
			NumNodes         *int32                      `json:"numNodes"`
			ResourcesPerNode corev1.ResourceRequirements `json:"resourcesPerNode"`
		} `json:"trainer"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	b.note = fmt.Sprintf("counted by spec.trainer: what the runtime %s adds is not in the manifest",
		cmp.Or(spec.RuntimeRef.Name, "?"))
	t := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "node", Resources: spec.Trainer.ResourcesPerNode,
	}}}}
	const task = "node"
	return b.make("spec.trainer", t, ptr.Deref(spec.Trainer.NumNodes, 1), task, wellknown.IndexJob, map[string]string{
		wellknown.JobSetName: b.object.Name, wellknown.TaskJobSet: task, wellknown.JobOfJobSet: "0",
	})
}

// volcanoJob reads a Job of Volcano, which has one PodGroup.
func volcanoJob(b *builder) error {
	var spec struct {
		MinAvailable *int32 `json:"minAvailable"`
		Tasks        []struct {
			Name     string                 `json:"name"`
			Replicas *int32                 `json:"replicas"`
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"tasks"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	for i := range spec.Tasks {
		t := &spec.Tasks[i]
		name := cmp.Or(t.Name, fmt.Sprint("default", i))
		template := annotate(t.Template, wellknown.VolcanoGroup, b.object.Name)
		path, labels := fmt.Sprintf("spec.tasks[%d].template", i), map[string]string{wellknown.TaskVolcano: name}
		if err := b.make(path, template, ptr.Deref(t.Replicas, 1), name, wellknown.IndexVolcano, labels); err != nil {
			return err
		}
	}
	b.group(ptr.Deref(spec.MinAvailable, int32(b.pods)), b.object.Annotations) //nolint:gosec // At most MaxPods.
	return nil
}

func rayCluster(b *builder) error {
	type cluster struct {
		Head struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"headGroupSpec"`
		Workers []struct {
			Name     string                 `json:"groupName"`
			Replicas *int32                 `json:"replicas"`
			Least    *int32                 `json:"minReplicas"`
			Hosts    *int32                 `json:"numOfHosts"`
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"workerGroupSpecs"`
	}
	var spec struct {
		cluster
		// Of is a RayJob's.
		Of *cluster `json:"rayClusterSpec"`
	}
	if err := b.spec(&spec); err != nil {
		return err
	}
	c, at := &spec.cluster, "spec."
	if spec.Of != nil {
		c, at = spec.Of, "spec.rayClusterSpec."
	}
	labels := func(kind string) map[string]string {
		return map[string]string{wellknown.RayCluster: b.object.Name, wellknown.TaskRay: kind}
	}
	if err := b.make(at+"headGroupSpec.template", &c.Head.Template, 1, "head", "", labels("head")); err != nil {
		return err
	}
	for i := range c.Workers {
		w := &c.Workers[i]
		n := ptr.Deref(w.Replicas, ptr.Deref(w.Least, 0)) * ptr.Deref(w.Hosts, 1)
		path := fmt.Sprintf("%sworkerGroupSpecs[%d].template", at, i)
		if err := b.make(path, &w.Template, n, cmp.Or(w.Name, "workers"), "", labels("worker")); err != nil {
			return err
		}
	}
	return nil
}
