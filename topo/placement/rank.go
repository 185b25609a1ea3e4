package placement

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// OrderPods sorts the pods of a gang by rank: tasks in order, then the index in
// the task. Tasks that lead a job come first (master, chief, launcher, ps, ...),
// others by name. A pod of no task is in the task "", which is last but for
// workers'; one without an index follows those that have one, by name. Of a
// JobSet, all pods of one Job are before those of the next.
//
// The task is in a label of the job's operator. The index is the operator's, the
// Job's or the StatefulSet's, else the number at the end of the pod's name.
func OrderPods(pods []*corev1.Pod) {
	keys := make(map[*corev1.Pod]Rank, len(pods))
	for _, pod := range pods {
		keys[pod] = RankOf(pod)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(keys[a].Compare(keys[b]), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// TaskOf returns a pod's task in its job, at most as long as a label; empty if unknown.
func TaskOf(pod *corev1.Pod) string {
	return strings.ToLower(cmp.Or(
		pod.Labels[wellknown.TaskKubeflow], pod.Labels[wellknown.TaskVolcano], pod.Labels[wellknown.TaskJobSet],
		pod.Labels[wellknown.TaskKubeflowV1], pod.Labels[wellknown.TaskRay], pod.Labels[wellknown.TaskMPI],
		wellknown.ClipTo(pod.Annotations[wellknown.TaskVolcano], wellknown.MaxLabel),
	))
}

// Rank is the place of a pod in its job.
type Rank struct {
	task string
	// job is the index of the task's Job, if a JobSet has several.
	job, index int32
	lead       int8
}

// Compare orders by rank.
func (r Rank) Compare(o Rank) int {
	return cmp.Or(cmp.Compare(r.lead, o.lead), cmp.Compare(r.task, o.task), cmp.Compare(r.job, o.job),
		cmp.Compare(r.index, o.index))
}

// RankOf returns the rank of a pod.
func RankOf(pod *corev1.Pod) Rank {
	task := TaskOf(pod)
	job, _ := Digits(cmp.Or(pod.Labels[wellknown.JobOfJobSet], "0"))
	return Rank{lead: lead(task), task: task, job: job, index: index(pod)}
}

// lead returns the place of a task among those that their names put in order; "*"
// stands for all others.
func lead(task string) int8 {
	order := []string{
		"master", "chief", "launcher", "leader", "driver", "head", "scheduler", "ps", "server",
		"*", "", "worker", "workers", "evaluator",
	}
	at := slices.Index(order, task)
	if at < 0 {
		at = slices.Index(order, "*")
	}
	return int8(at) //nolint:gosec // There are few.
}

func index(pod *corev1.Pod) int32 {
	for _, key := range []string{
		wellknown.IndexKubeflow, wellknown.IndexVolcano, wellknown.IndexJob, wellknown.IndexStateful,
		wellknown.IndexLeader, wellknown.IndexKubeflow1,
	} {
		for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
			if n, ok := Digits(from[key]); ok {
				return n
			}
		}
	}
	if n, ok := Digits(pod.Name[strings.LastIndexByte(pod.Name, '-')+1:]); ok {
		return n
	}
	return 1 << 30 // Behind all that have one.
}

// Digits returns a number that is written in digits alone; a generated suffix such as 4x9bk does
// not count.
func Digits(text string) (int32, bool) {
	if text == "" {
		return 0, false // Most labels are absent, and the error would cost more than all the rest.
	}
	n, err := strconv.ParseUint(text, 10, 30)
	return int32(n), err == nil
}
