package wellknown

import "slices"

// The labels and annotations of a gang on a pod or a PodGroup object. The first family is
// that of the PodGroup API (scheduling.sigs.k8s.io) and of the clouds that
// took it over: labels; min-available and match-policy may be
// annotations too, and groups must be.
const (
	// GangName is the label with the gang's name; GangNameBare and
	// GangNameXK8s name a PodGroup object as well.
	GangName     = gangFamily + "/name"
	GangNameBare = gangFamily
	GangNameXK8s = "scheduling.x-k8s.io/pod-group"

	GangMinAvailable = gangFamily + "/min-available"
	GangMatchPolicy  = gangFamily + "/match-policy"
	GangGroups       = gangFamily + "/groups"

	gangFamily = "pod-group.scheduling.sigs.k8s.io"
)

// The API groups that have PodGroup objects, both in one version, and their resource. The
// second is the only one that a cluster from 1.31 on may have: *.k8s.io without the x is
// protected.
const (
	PodGroupAPI     = "scheduling.sigs.k8s.io"
	PodGroupAPIXK8s = "scheduling.x-k8s.io"
	PodGroupVersion = "v1alpha1"
	PodGroups       = "podgroups"
)

// Koordinator's annotations of gangs (apis/extension/coscheduling.go).
const (
	KoordinatorName         = koordinatorGang + "/name"
	KoordinatorMinAvailable = koordinatorGang + "/min-available"
	KoordinatorGroups       = koordinatorGang + "/groups"
	KoordinatorMatchPolicy  = koordinatorGang + "/match-policy"
	KoordinatorWaitingTime  = koordinatorGang + "/waiting-time"
	KoordinatorTotalNumber  = koordinatorGang + "/total-number"
	KoordinatorMode         = koordinatorGang + "/mode"

	koordinatorGang = "gang.scheduling.koordinator.sh"
)

// heddle's own annotations of gangs: the required or preferred kind of group around a gang, and the
// behavior without a topology tree.
const (
	GangRequiredLevel  = Prefix + "gang-required-level"
	GangPreferredLevel = Prefix + "gang-preferred-level"
	// Gang makes a gang of the pods of one Job, JobSet, LeaderWorkerSet's group,
	// Kubeflow job or Ray cluster: the number of its members, or "true" where the
	// pods contain it.
	Gang = Prefix + "gang"
	// GangWithoutMap is "wait" or "place".
	GangWithoutMap = Prefix + "gang-without-map"
	// ExpectedDuration is for how long a pod is expected to run, such as 90m.
	ExpectedDuration = Prefix + "expected-duration"
)

// GPUGroupSize returns the pod annotation with the size of a slice in GPUs: this many
// consecutive ranks' GPUs are in one lowest group. On any member it holds for
// the gang: nvidia.com/gpu-group-size.
func (d Domains) GPUGroupSize() string { return d.VendorKey(gpuGroupSize) }

// GPUGroupSizes returns all spellings of GPUGroupSize.
func (d Domains) GPUGroupSizes() (keys []string) {
	for _, maker := range d.Each() {
		keys = append(keys, maker.GPUGroupSize())
	}
	if !slices.Contains(keys, GPUGroupSizeAlias) {
		keys = append(keys, GPUGroupSizeAlias)
	}
	return keys
}

// GPUGroupSizeAlias is the spelling of the field's sGPU scheme.
const (
	GPUGroupSizeAlias = "metax-tech.com/" + gpuGroupSize

	gpuGroupSize = "gpu-group-size"
)

// Labels and annotations of operators for which task of a job a pod
// belongs to, and which number it has in it; and what a Job's and a
// StatefulSet's controllers write.
const (
	TaskKubeflow   = "training.kubeflow.org/replica-type"
	IndexKubeflow  = "training.kubeflow.org/replica-index"
	TaskVolcano    = "volcano.sh/task-spec"
	IndexVolcano   = "volcano.sh/task-index"
	IndexJob       = "batch.kubernetes.io/job-completion-index"
	IndexStateful  = "apps.kubernetes.io/pod-index"
	IndexLeader    = "leaderworkerset.sigs.k8s.io/worker-index"
	TaskJobSet     = "jobset.sigs.k8s.io/replicatedjob-name"
	JobOfJobSet    = "jobset.sigs.k8s.io/job-index"
	TaskKubeflowV1 = "replica-type"
	IndexKubeflow1 = "replica-index"
	TaskRay        = "ray.io/node-type"
	TaskMPI        = "training.kubeflow.org/job-role"
)

// What other schedulers, queues and operators write into the pods of one gang.
const (
	// VolcanoGroup and VolcanoGroupAlias are annotations with the name of a
	// PodGroup of Volcano's (volcano.sh/apis, scheduling/v1beta1/labels.go).
	VolcanoGroup      = "scheduling.k8s.io/group-name"
	VolcanoGroupAlias = "scheduling.volcano.sh/group-name"
	// LeaderWorkerSet's labels of a group, and the annotation with its size
	// (sigs.k8s.io/lws, leaderworkerset_types.go).
	LWSName       = "leaderworkerset.sigs.k8s.io/name"
	LWSGroupIndex = "leaderworkerset.sigs.k8s.io/group-index"
	LWSSize       = "leaderworkerset.sigs.k8s.io/size"
	// Kueue's label of a group of pods, and the annotation with its size
	// (sigs.k8s.io/kueue, pkg/controller/jobs/pod/constants).
	KueueGroup = "kueue.x-k8s.io/pod-group-name"
	KueueCount = "kueue.x-k8s.io/pod-group-total-count"
	// The labels with the name of the job or the cluster.
	JobSetName  = "jobset.sigs.k8s.io/jobset-name"
	KubeflowJob = "training.kubeflow.org/job-name"
	RayCluster  = "ray.io/cluster"
	JobName     = "batch.kubernetes.io/job-name"
)
