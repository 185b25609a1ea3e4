package gang

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang/rank"
)

// API is what makes a gang of pods: a scheduler, a queue, or the controller of
// a job.
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

// implied is true of an API whose pods may as well be one alone, or run one
// after the other: that they are a gang shows in how they run.
func (a API) implied() bool {
	return a == LeaderWorkerSet || a == JobSet || a == Kubeflow || a == Ray || a == Job
}

// apiKeys are where the pods of an API name their gang.
type apiKeys struct {
	api  API
	name key
	// index distinguishes the gangs of one name, size is how many pods each has;
	// empty for APIs whose pods do not have it.
	index, size key
}

// apis is the order in which a pod with keys of several counts, behind Native
// and PodGroup: what is placed together, then what is admitted together, then
// what one controller makes. A LeaderWorkerSet's group is before Kueue's, which
// holds whole ones, and each operator's job before the Jobs that it is made of.
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

// identity is which gang a pod is in. The size is 0 if the pod does not have it.
type identity struct {
	api  API
	name string
	size int
}

// identify is the gang of a pod that requests so many GPUs; false if it is in
// none. Keys that are invalid name no gang: their own scheduler reports them.
func identify(pod *corev1.Pod, gpus int32) (identity, bool) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil && isName(*g.PodGroupName) {
		return identity{api: Native, name: *g.PodGroupName}, true
	}
	r := reader{labels: pod.Labels, annotations: pod.Annotations}
	if Mentions(pod) {
		// The domains are for gpu-group-size, which is not used here.
		if spec, _ := Read(pod, wellknown.DefaultDomains()); spec.Key.Name != "" {
			id := identity{api: PodGroup, name: spec.Key.Name, size: spec.MinMember}
			if of, _ := r.ofAPI(pod, true); r.has(annotation(wellknown.Gang)) && of.name == id.name {
				id.api = of.api
			}
			return id, true
		}
	}
	id, ok := r.ofAPI(pod, false)
	// Jobs are for all sorts of work. Of the others, members without GPUs count:
	// launchers, the head of a Ray cluster.
	return id, ok && (id.api != Job || gpus > 0)
}

// ofAPI is the gang that the first of the APIs makes of the pod; with implied, the
// one that its controller makes. It is false if none does.
func (r *reader) ofAPI(pod *corev1.Pod, implied bool) (identity, bool) {
	for _, keys := range apis() {
		if id, ok := keys.read(r, pod); ok && (!implied || keys.api.implied()) {
			return id, true
		}
	}
	return identity{}, false
}

// read is the gang that the keys name; false if they name none.
func (k *apiKeys) read(r *reader, pod *corev1.Pod) (identity, bool) {
	name, _ := r.lookup(k.name)
	if k.api == Volcano {
		name = volcanoName(name, pod)
	}
	if !isName(name) {
		return identity{}, false
	}
	id := identity{api: k.api, name: name, size: r.number(MaxMembers, k.size)}
	if k.index.name != "" {
		index, _ := r.lookup(k.index)
		if _, ok := rank.Digits(index); !ok || id.size == 1 {
			return identity{}, false // A group of one is no gang.
		}
		id.name += "-" + index
	}
	return id, true
}

// volcanoName is the name under which users know a PodGroup: Volcano names that
// of its Job by the Job and its UID. It is empty for a PodGroup that Volcano
// made for pods without one: each of these may run alone.
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

// Concerns is true for a pod that may be in a gang even without GPUs; it is
// cheaper than [MemberOf] where most pods are in none.
func Concerns(pod *corev1.Pod) bool {
	r, all := reader{labels: pod.Labels, annotations: pod.Annotations}, apis()
	return pod.Spec.SchedulingGroup != nil || Mentions(pod) ||
		slices.ContainsFunc(all[:], func(k apiKeys) bool { return k.api != Job && r.has(k.name) })
}

// Together is true if members are a gang: two of them are, or were, there at
// the same time, or it has a size. A gang that its pods declare always is one.
func Together(members []*Member) bool {
	if len(members) == 0 || !members[0].API.implied() || members[0].MinMember > 1 {
		return len(members) > 0
	}
	sorted := slices.SortedFunc(slices.Values(members), func(a, b *Member) int {
		// Times are in seconds: of two that were created in one, one that has ended was first.
		return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.end(), b.end()))
	})
	// The end of the one that was there for longest so far; a pod that is being
	// deleted makes room for the next.
	var until int64
	for i, m := range sorted {
		if i > 0 && m.created < until {
			return true
		}
		until = max(until, m.end())
	}
	return false
}

// Current are the members without those that failed and whose place another has
// taken: Jobs keep failed pods beside the ones that run for them.
func Current(members []*Member) []*Member {
	return slices.DeleteFunc(slices.Clone(members), func(m *Member) bool {
		return m.API.implied() && m.stage == failed && slices.ContainsFunc(members, func(next *Member) bool {
			// Times are in seconds: of two that fail in one, none follows the other.
			return next.rank == m.rank && next.created >= m.end() &&
				(next.created > m.created || next.stage != failed)
		})
	})
}
