package agent

import (
	"errors"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// consumer is a container's part of a GPU.
type consumer struct{ namespace, pod, uid, container, gpu string }

// consumed is what a consumer uses: bytes of memory, and percent of the time on
// the SMs; unknown where that is not certain.
type consumed struct{ bytes, sm int64 }

const unknown int64 = -1

func plus(a, b int64) int64 {
	if a == unknown || b == unknown {
		return unknown
	}
	return a + b
}

// containerNames are the names of the containers that run, by cgroup.
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
// GPU. A process of which that is not known makes unknown whatever it may
// belong to: the pod's containers, or all on the GPU. Containers with MPS are
// left out, since the driver counts for the server what its clients use.
func attribute(
	bindings []devicestate.Allocation, gpus []devgpu.Usage, where func(pid int) (cgroup.Container, error),
	named map[cgroup.Container]string,
) map[consumer]consumed {
	used := make(map[consumer]consumed)
	for i := range gpus {
		g := &gpus[i]
		if g.Err != nil {
			continue
		}
		bytes := newTally(bindings, g.GPU, where, named)
		for _, p := range g.Processes {
			bytes.add(p.PID, p.Bytes, false)
		}
		sm := newTally(bindings, g.GPU, where, named)
		for _, s := range g.Samples {
			if s.SM != 0 {
				// What ran and has ended may have been any container's.
				sm.add(s.PID, int64(s.SM), true)
			}
		}
		sm.lost = sm.lost || g.SamplesErr != nil
		for i := range bindings {
			b := &bindings[i]
			c := consumer{b.Namespace, b.Pod, b.UID, b.Container, g.GPU}
			_, has := bytes.sums[c]
			if has && b.UID != "" && b.Enforced.Memory != config.EnforceMPS && b.Enforced.Compute != config.EnforceMPS {
				used[c] = consumed{bytes.of(c), sm.of(c)}
			}
		}
	}
	return used
}

// tally is a sum for every container that has a part of one g.
type tally struct {
	where func(pid int) (cgroup.Container, error)
	named map[cgroup.Container]string
	sums  map[consumer]int64
	// pods are the containers with that GPU, by pod.
	pods map[string][]consumer
	// lost means that something may belong to any of them.
	lost bool
}

func newTally(
	bindings []devicestate.Allocation, gpu string, where func(pid int) (cgroup.Container, error),
	named map[cgroup.Container]string,
) *tally {
	t := &tally{where: where, named: named, sums: map[consumer]int64{}, pods: map[string][]consumer{}}
	for i := range bindings {
		b := &bindings[i]
		for _, s := range b.Shares {
			c := consumer{b.Namespace, b.Pod, b.UID, b.Container, gpu}
			if _, twice := t.sums[c]; s.UUID != gpu || twice {
				continue
			}
			t.sums[c] = 0
			t.pods[b.UID] = append(t.pods[b.UID], c)
		}
	}
	return t
}

func (t *tally) of(c consumer) int64 {
	if t.lost {
		return unknown
	}
	return t.sums[c]
}

// add gives what a process uses to its container. A process that has ended uses
// nothing, unless what it did before counts.
func (t *tally) add(pid int, amount int64, before bool) {
	if pid <= 0 {
		t.lost = true
		return
	}
	in, err := t.where(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !before:
		return
	case err != nil:
		t.lost = true
		return
	}
	holders := t.pods[in.PodUID]
	name, sure := t.named[in]
	for _, c := range holders {
		switch {
		case sure && c.container == name, !sure && len(holders) == 1:
			t.sums[c] = plus(t.sums[c], amount)
		case !sure:
			t.sums[c] = unknown
		}
	}
}
