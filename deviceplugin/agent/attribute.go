package agent

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

const unknown = enforce.Unknown

// containerNames returns the names of the containers that run, by cgroup.
func containerNames(pods []*corev1.Pod) map[cgroup.Container]string {
	named := make(map[cgroup.Container]string)
	for _, p := range pods {
		for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
			for i := range list {
				// containerd://<id>
				if _, id, ok := strings.Cut(list[i].ContainerID, "://"); ok && id != "" {
					named[cgroup.Container{PodUID: string(p.UID), ID: id}] = list[i].Name
				}
			}
		}
	}
	return named
}

// attribute adds up what the processes on each GPU use by container. A process
// is a container's if its cgroup is the pod's, and either the pod's status names
// the container by the ID in the cgroup, or no other container of the pod has that
// GPU. A process that cannot be attributed makes unknown whatever it may
// belong to: the pod's containers, or all on the GPU. Containers with MPS are
// left out, since the driver counts for the server what its clients use.
func attribute(all []enforce.Use, gpus []devgpu.Usage, procs cgroup.Proc, named map[cgroup.Container]string) {
	for i := range gpus {
		g := &gpus[i]
		if g.Err != nil {
			continue
		}
		bytes, sm := newTally(all, g.GPU), newTally(all, g.GPU)
		for _, p := range g.Processes {
			in, err := containerOf(procs, p.PID)
			if errors.Is(err, fs.ErrNotExist) {
				continue // A process that has ended uses nothing.
			}
			bytes.add(in, named[in], err, p.Bytes)
		}
		for _, s := range g.Samples {
			if s.SM != 0 {
				// What ran and has ended may have been any container's.
				in, err := containerOf(procs, s.PID)
				sm.add(in, named[in], err, int64(s.SM))
			}
		}
		sm.lost = sm.lost || g.SamplesErr != nil
		for j := range all {
			if u := &all[j]; u.GPU == g.GPU && u.UID != "" && !u.Enforced.Uses(config.EnforceMPS) {
				u.Used, u.SM = bytes.of(u), sm.of(u)
			}
		}
	}
}

var errNoPID = errors.New("the driver reports no PID")

func containerOf(procs cgroup.Proc, pid int) (cgroup.Container, error) {
	if pid <= 0 {
		return cgroup.Container{}, errNoPID
	}
	return procs.Container(pid)
}

// tally is a sum for every container that has a part of one GPU.
type tally struct {
	sums map[*enforce.Use]int64
	// pods are the containers with that GPU, by pod.
	pods map[string][]*enforce.Use
	// lost means that something may belong to any of them.
	lost bool
}

func newTally(all []enforce.Use, gpu string) *tally {
	t := &tally{sums: map[*enforce.Use]int64{}, pods: map[string][]*enforce.Use{}}
	for i := range all {
		if u := &all[i]; u.GPU == gpu {
			t.pods[u.UID] = append(t.pods[u.UID], u)
		}
	}
	return t
}

func (t *tally) of(u *enforce.Use) int64 {
	if t.lost {
		return unknown
	}
	return t.sums[u]
}

// add attributes the use of a process to its container; an empty name is unknown. After
// an error it may be any container's.
func (t *tally) add(in cgroup.Container, name string, err error, amount int64) {
	t.lost = t.lost || err != nil
	holders := t.pods[in.PodUID]
	for _, u := range holders {
		its := u.Container == name || name == "" && len(holders) == 1
		switch {
		case !its && name != "": // It is of another container.
		case !its, amount == unknown, t.sums[u] == unknown:
			t.sums[u] = unknown
		default:
			t.sums[u] += amount
		}
	}
}

// uses returns the parts of GPUs that containers have; what they use is unknown yet. A terminating pod is not
// evicted again, nor is one that is gone; nor is a static pod: it would come back at once, and the API server
// cannot end it.
func uses(m *machine.Machine, allocations []report.Binding, pods []*corev1.Pod) []enforce.Use {
	byUID := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		// The kubelet knows a static pod by the hash of its file.
		byUID[cmp.Or(p.Annotations[corev1.MirrorPodAnnotationKey], string(p.UID))] = p
	}
	var all []enforce.Use
	for i := range allocations {
		b := &allocations[i]
		for _, s := range b.Shares {
			at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID })
			if at < 0 {
				continue
			}
			u := enforce.Use{
				Namespace: b.Namespace, Pod: b.Pod, UID: b.UID, Container: b.Container,
				GPU: s.UUID, Index: m.GPUs[at].Index, Total: m.GPUs[at].MemoryMiB << 20, Share: s.MemoryMiB << 20,
				Used: unknown, SM: unknown, Percent: unlimited(b, s), Enforced: b.Enforced, Terminating: true,
			}
			if p := byUID[b.UID]; p != nil {
				_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
				u.Priority, u.Terminating = schedulehelpers.PodPriority(p), p.DeletionTimestamp != nil
				u.Evictable = b.Enforced.Memory == config.EnforceEvict && !mirror && s.MemoryMiB > 0
			}
			all = append(all, u)
		}
	}
	return all
}

// unlimited returns the compute that a container has of a GPU and that nothing keeps it to;
// 0 without such a limit.
func unlimited(b *report.Binding, s allocation.Share) int64 {
	if b.Enforced.Compute != config.EnforceNone || b.Policy != string(quota.FixedShare) || s.VCore >= quota.Whole {
		return 0
	}
	return int64(s.VCore)
}
