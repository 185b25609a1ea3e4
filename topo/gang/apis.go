package gang

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/placement"
)

// API is the API that makes a gang of pods: of a scheduler, a queue, or a job's controller.
type API string

// The APIs.
const (
	// Native is spec.schedulingGroup, Kubernetes' own.
	Native API = "Kubernetes"
	// PodGroup are the spellings of [Read], which heddle-scheduler, the
	// coscheduling plugin and Koordinator place by.
	PodGroup        API = "PodGroup"
	Volcano         API = "Volcano"
	LeaderWorkerSet API = "LeaderWorkerSet"
	Kueue           API = "Kueue"
	JobSet          API = "JobSet"
	Kubeflow        API = "Kubeflow"
	Ray             API = "Ray"
	Job             API = "Job"
)

// implied reports that pods of the API may also run alone or one after another. Whether they
// are a gang shows in how they run.
func (a API) implied() bool {
	return a == LeaderWorkerSet || a == JobSet || a == Kubeflow || a == Ray || a == Job
}

// apiKeys are the keys by which pods of an API name their gang.
type apiKeys struct {
	api  API
	name key
	// index distinguishes gangs of one name, and size has the number of pods. They are empty for
	// APIs without these keys.
	index, size key
}

// apis returns the keys in order of precedence, after Native and PodGroup: pods that are
// placed together, admitted together, then made by one controller. A LeaderWorkerSet's group
// precedes Kueue's, which contains it, and an operator's job precedes its Jobs.
func apis() [8]apiKeys {
	return [8]apiKeys{
		{api: Volcano, name: annotation(wellknown.VolcanoGroup)},
		{api: Volcano, name: annotation(wellknown.VolcanoGroupAlias)},
		{
			api: LeaderWorkerSet, name: label(wellknown.LWSName), index: label(wellknown.LWSGroupIndex),
			size: annotation(wellknown.LWSSize),
		},
		{api: Kueue, name: label(wellknown.KueueGroup), size: annotation(wellknown.KueueCount)},
		{api: JobSet, name: label(wellknown.JobSetName)},
		{api: Kubeflow, name: label(wellknown.KubeflowJob)},
		{api: Ray, name: label(wellknown.RayCluster)},
		{api: Job, name: label(wellknown.JobName)},
	}
}

// identify returns the gang of a pod that requests GPUs; an empty name if it is in none. The size
// is 0 if the pod does not state it. Invalid keys name no gang: their own scheduler reports them.
func identify(pod *corev1.Pod, gpus int32) (api API, name string, size int) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil && isName(*g.PodGroupName) {
		return Native, *g.PodGroupName, 0
	}
	r := reader{labels: pod.Labels, annotations: pod.Annotations}
	if Mentions(pod) {
		// The domains are for gpu-group-size, which is not used here.
		if spec, _ := Read(pod, wellknown.DefaultDomains()); spec.Key.Name != "" {
			of, made, _ := r.ofAPI(pod, true)
			if !r.has(annotation(wellknown.Gang)) || made != spec.Key.Name {
				of = PodGroup
			}
			return of, spec.Key.Name, spec.MinMember
		}
	}
	// Jobs are for all sorts of work. Other APIs have members without GPUs: launchers, the head of
	// a Ray cluster.
	if api, name, size = r.ofAPI(pod, false); api == Job && gpus == 0 {
		return "", "", 0
	}
	return api, name, size
}

// ofAPI returns the gang by the first API with keys on the pod; with implied by its controller.
func (r *reader) ofAPI(pod *corev1.Pod, implied bool) (api API, name string, size int) {
	for _, keys := range apis() {
		if name, size := keys.read(r, pod); name != "" && (!implied || keys.api.implied()) {
			return keys.api, name, size
		}
	}
	return "", "", 0
}

// read returns the gang that the keys name; an empty name if they name none.
func (k *apiKeys) read(r *reader, pod *corev1.Pod) (name string, size int) {
	name, _ = r.lookup(k.name)
	if k.api == Volcano {
		name = volcanoName(name, pod)
	}
	if !isName(name) {
		return "", 0
	}
	size = r.number(MaxMembers, k.size)
	if k.index.name != "" {
		index, _ := r.lookup(k.index)
		if _, ok := placement.Digits(index); !ok || size == 1 {
			return "", 0 // A group of one pod.
		}
		name += "-" + index
	}
	return name, size
}

// volcanoName returns the name under which users know a PodGroup: Volcano names a Job's PodGroup
// by the Job and its UID. It is empty for a PodGroup that Volcano made for pods without one,
// which may run alone.
func volcanoName(group string, pod *corev1.Pod) string {
	owner := cmp.Or(metav1.GetControllerOfNoCopy(pod), &metav1.OwnerReference{})
	switch uid, made := strings.CutPrefix(group, "podgroup-"); {
	case made && (uid == string(pod.UID) || uid == string(owner.UID)):
		return ""
	case group == owner.Name+"-"+string(owner.UID):
		return owner.Name
	}
	return group
}

// Concerns reports whether a pod may be in a gang even without GPUs. It is cheaper than
// [MemberOf], since most pods are in none.
func Concerns(pod *corev1.Pod) bool {
	r, all := reader{labels: pod.Labels, annotations: pod.Annotations}, apis()
	return pod.Spec.SchedulingGroup != nil || Mentions(pod) ||
		slices.ContainsFunc(all[:], func(k apiKeys) bool { return k.api != Job && r.has(k.name) })
}

// Together reports whether members are a gang: two of them existed at the same time, or the gang
// has a size, or its pods declare it.
func Together(members []*Member) bool {
	if len(members) == 0 || !members[0].API.implied() || members[0].MinMember > 1 {
		return len(members) > 0
	}
	sorted := slices.SortedFunc(slices.Values(members), func(a, b *Member) int {
		// Times are in whole seconds. If two are equal, a pod that has ended was first.
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.end(), b.end()))
	})
	// The latest end so far. A pod that is being deleted makes room for the next.
	var until int64
	for i, m := range sorted {
		if i > 0 && m.created < until {
			return true
		}
		until = max(until, m.end())
	}
	return false
}

// Current returns the members except for failed ones that were replaced: Jobs keep failed pods
// beside their replacements.
func Current(members []*Member) []*Member {
	return slices.DeleteFunc(slices.Clone(members), func(m *Member) bool {
		return m.API.implied() && m.stage == failed && slices.ContainsFunc(members, func(next *Member) bool {
			// Times are in whole seconds. Of two that failed in the same second, none follows.
			return next.rank == m.rank && next.created >= m.end() &&
				(next.created > m.created || next.stage != failed)
		})
	})
}
