package hami

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// SchedulerName is spec.schedulerName of pods that HAMi schedules: its chart's default.
// The allocation annotation of any other pod is ignored.
const SchedulerName = "hami-scheduler"

// ErrAbsent means that HAMi chose nothing for a container. It does not reject
// HAMi's choice; the node's configuration decides what chooses instead.
var ErrAbsent = errors.New("HAMi chose no GPU")

// Choice returns the UUIDs of the GPUs that HAMi chose for a container of a pod, and the
// request as HAMi counts it, see counted. The error is [ErrAbsent], or the reason
// why HAMi's annotation is not followed, for the pod's owner. HAMi chooses the GPUs;
// the container's limits set the amounts. node is the name of this Node, memoryMiB the memory of each of its
// GPUs, by UUID.
func Choice(
	pod *corev1.Pod, container string, want *quota.Request, node string, memoryMiB map[string]int64,
) (uuids []string, counts quota.Request, err error) {
	listed, initial, err := listedFor(pod, container, want, node)
	if err != nil {
		return nil, *want, err
	}
	uuids = make([]string, 0, len(listed))
	for _, s := range listed {
		if err := checkShare(s, initial, want, memoryMiB); err != nil {
			return nil, *want, err
		}
		uuids = append(uuids, s.UUID)
	}
	return uuids, counted(listed, want, memoryMiB), nil
}

// listedFor returns the shares that HAMi chose for a container, as many as it requests;
// initial reports that it is an init container.
func listedFor(
	pod *corev1.Pod, container string, want *quota.Request, node string,
) (listed []Share, initial bool, err error) {
	text, written := pod.Annotations[wellknown.HAMiAllocation]
	if !written {
		return nil, false, fmt.Errorf("%w: missing %s", ErrAbsent, wellknown.HAMiAllocation)
	}
	if pod.Spec.SchedulerName != SchedulerName {
		return nil, false, fmt.Errorf("%s is not believed: the pod's scheduler is %q, and HAMi is %q",
			wellknown.HAMiAllocation, pod.Spec.SchedulerName, SchedulerName)
	}
	if err := checkBinding(pod, node); err != nil {
		return nil, false, err
	}
	all, err := ParsePodShares(text)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", wellknown.HAMiAllocation, err)
	}
	listed, initial, err = partOf(all, pod, container)
	if err != nil {
		return nil, initial, err
	}
	if initial {
		if listed = listed[:min(len(listed), max(want.GPUs, 0))]; len(listed) < want.GPUs {
			return nil, initial, fmt.Errorf("%w: %s has %d of %d GPUs for init container %s",
				ErrAbsent, wellknown.HAMiAllocation, len(listed), want.GPUs, container)
		}
	}
	if len(listed) != want.GPUs {
		return nil, initial, fmt.Errorf("%s: %d GPUs for container %s, which requests %d",
			wellknown.HAMiAllocation, len(listed), container, want.GPUs)
	}
	return listed, initial, nil
}

// counted returns a request as HAMi counts it. HAMi rounds bytes down to MiB, where
// heddle rounds up: with the latter sixteen containers that fill a GPU by HAMi's
// account do not fit. Without vcore HAMi counts 100 also for best-effort. Without vmemory
// it counts all that was published, which is less than the GPU has where others have
// some of it.
func counted(listed []Share, want *quota.Request, memoryMiB map[string]int64) quota.Request {
	out := *want
	for _, s := range listed {
		if memory := int64(s.VRam); want.MemoryMiB == 0 && want.MemoryPercent == 0 && memory < memoryMiB[s.UUID] {
			out.MemoryMiB = cmp.Or(min(out.MemoryMiB, memory), memory)
		}
		if int64(s.VRam) == want.MemoryMiB-1 {
			out.MemoryMiB = int64(s.VRam)
		}
		if want.VCore == 0 {
			out.VCore = max(out.VCore, int(s.Compute))
		}
	}
	return out
}

// checkBinding checks that HAMi bound the pod to this node, and that the choice
// is not younger than the binding. A binding that HAMi gave up waiting for may
// still succeed after a later Filter wrote for another node or GPU. The times
// have whole seconds, so a Filter within the second of the binding passes; the
// node's accounting checks its choice like any other.
func checkBinding(pod *corev1.Pod, node string) error {
	chosen := pod.Annotations[wellknown.HAMiNode]
	if chosen != node || pod.Spec.NodeName != node {
		return fmt.Errorf("%s: HAMi chose node %q, the pod is bound to %q, this is %s",
			wellknown.HAMiAllocation, wellknown.Clip(chosen), pod.Spec.NodeName, node)
	}
	text, bound := pod.Annotations[wellknown.HAMiBindTime]
	if !bound {
		return fmt.Errorf("%s is not believed: without %s HAMi has not bound the pod",
			wellknown.HAMiAllocation, wellknown.HAMiBindTime)
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("%s: invalid time in seconds %q", wellknown.HAMiBindTime, wellknown.Clip(text))
	}
	since, err := chosenAt(pod)
	if err != nil {
		return err
	}
	if at < since {
		return fmt.Errorf("%s is of %s, and the pod was bound at %s: HAMi chose again after it had bound",
			wellknown.HAMiAllocation, clock(since), clock(at))
	}
	return nil
}

// chosenAt returns the time when HAMi's Filter wrote, in Unix seconds.
func chosenAt(pod *corev1.Pod) (int64, error) {
	key, unit := wellknown.HAMiPredicateTime, int64(time.Second)
	text, ok := pod.Annotations[key]
	if !ok {
		key, unit = wellknown.HAMiChosenTime, 1
		if text, ok = pod.Annotations[key]; !ok {
			return 0, fmt.Errorf("%s has no time: neither %s nor %s",
				wellknown.HAMiAllocation, wellknown.HAMiPredicateTime, wellknown.HAMiChosenTime)
		}
	}
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: invalid time %q", key, wellknown.Clip(text))
	}
	return at / unit, nil
}

func clock(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }

// partOf returns a container's part of the list. HAMi 2.9 and later list init
// containers, then the others; 2.6 to 2.8 list the others only, and choose
// nothing for init containers; 2.6 begins with the first that has devices. The
// length distinguishes them.
func partOf(
	all PodShares, pod *corev1.Pod, container string,
) (part []Share, initial bool, err error) {
	named := func(c corev1.Container) bool { return c.Name == container }
	inits, apps := len(pod.Spec.InitContainers), len(pod.Spec.Containers)
	if len(all) < apps {
		// HAMi 2.6 omits the containers without devices before the first that has some.
		all = slices.Concat(make(PodShares, apps-len(all)), all)
	}
	app := slices.IndexFunc(pod.Spec.Containers, named)
	at := slices.IndexFunc(pod.Spec.InitContainers, named)
	initial = app < 0 && at >= 0
	switch {
	case app < 0 && at < 0:
		return nil, false, fmt.Errorf("%w: the pod has no container %s", ErrAbsent, container)
	case len(all) == inits+apps && initial:
		return all[at], true, nil
	case len(all) == inits+apps:
		return all[inits+app], false, nil
	case len(all) == apps && initial:
		return nil, true, fmt.Errorf("%w: before 2.9 it chooses none for init container %s", ErrAbsent, container)
	case len(all) == apps:
		return all[app], false, nil
	}
	return nil, initial, fmt.Errorf("%s has %d entries for a pod of %d containers and %d init containers",
		wellknown.HAMiAllocation, len(all), apps, inits)
}

// checkShare checks what HAMi gives of one GPU. For an init container, HAMi 2.9
// and later write the share of an app container that is large enough: the GPU is
// the same, the amounts are the init container's own.
func checkShare(s Share, initial bool, want *quota.Request, memoryMiB map[string]int64) error {
	total, known := memoryMiB[s.UUID]
	compute, memory := int(s.Compute), int64(s.VRam)
	switch {
	case !known:
		return fmt.Errorf("%s: this node has no shared GPU %s", wellknown.HAMiAllocation, s.UUID)
	case memory == 0:
		// No enforcer distinguishes "none" from "no limit", and HAMi never writes 0.
		return fmt.Errorf("%s: no memory of GPU %s", wellknown.HAMiAllocation, s.UUID)
	case memory > total:
		return fmt.Errorf("%s: %d MiB of GPU %s, which has %d", wellknown.HAMiAllocation, memory, s.UUID, total)
	case !initial && want.MemoryMiB > 0 && memory > want.MemoryMiB:
		return fmt.Errorf("%s: %d MiB of GPU %s, the container requests %d",
			wellknown.HAMiAllocation, memory, s.UUID, want.MemoryMiB)
	case !initial && want.VCore > 0 && compute > want.VCore:
		return fmt.Errorf("%s: %d %% of GPU %s, the container requests %d",
			wellknown.HAMiAllocation, compute, s.UUID, want.VCore)
	}
	return nil
}

// Annotations returns the annotations by which a pod was scheduled. HAMi 2.7 and later know one
// spelling of the QoS policy, [wellknown.SGPUQoSPolicyAlias]; their webhook adds it to a pod that
// has the other, and the scheduler uses it. In a pod that HAMi scheduled the other does not
// contradict it. Without HAMi they are the pod's.
func Annotations(pod *corev1.Pod, d wellknown.Domains) map[string]string {
	_, chosen := pod.Annotations[wellknown.HAMiAllocation]
	_, policy := pod.Annotations[wellknown.SGPUQoSPolicyAlias]
	key := d.SGPUQoSPolicy()
	if !chosen || !policy || pod.Spec.SchedulerName != SchedulerName || key == wellknown.SGPUQoSPolicyAlias {
		return pod.Annotations
	}
	all := maps.Clone(pod.Annotations)
	delete(all, key)
	return all
}
