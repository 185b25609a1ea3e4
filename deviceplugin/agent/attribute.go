package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// consumer is a container's part of a GPU.
type consumer struct{ namespace, pod, uid, container, gpu string }

// consumed is the use of a consumer: bytes of memory, and percent of the time on
// the SMs; unknown where that is not certain.
type consumed struct{ bytes, sm int64 }

const unknown = enforce.Unknown

// usedBy returns the use of a GPU by a container.
func usedBy(used map[consumer]consumed, b *report.Binding, gpu string) consumed {
	if now, ok := used[consumer{b.Namespace, b.Pod, b.UID, b.Container, gpu}]; ok {
		return now
	}
	return consumed{unknown, unknown}
}

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
func attribute(
	bindings []report.Binding, gpus []devgpu.Usage, procs cgroup.Proc, named map[cgroup.Container]string,
) map[consumer]consumed {
	used := make(map[consumer]consumed)
	for i := range gpus {
		g := &gpus[i]
		if g.Err != nil {
			continue
		}
		bytes, sm := newTally(bindings, g.GPU), newTally(bindings, g.GPU)
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

var errNoPID = errors.New("the driver reports no PID")

func containerOf(procs cgroup.Proc, pid int) (cgroup.Container, error) {
	if pid <= 0 {
		return cgroup.Container{}, errNoPID
	}
	return procs.Container(pid)
}

// tally is a sum for every container that has a part of one GPU.
type tally struct {
	sums map[consumer]int64
	// pods are the containers with that GPU, by pod.
	pods map[string][]consumer
	// lost means that something may belong to any of them.
	lost bool
}

func newTally(bindings []report.Binding, gpu string) *tally {
	t := &tally{sums: map[consumer]int64{}, pods: map[string][]consumer{}}
	for i := range bindings {
		b := &bindings[i]
		c := consumer{b.Namespace, b.Pod, b.UID, b.Container, gpu}
		if slices.ContainsFunc(b.Shares, func(s allocation.Share) bool { return s.UUID == gpu }) {
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

// add attributes the use of a process to its container; an empty name is unknown. After
// an error it may be any container's.
func (t *tally) add(in cgroup.Container, name string, err error, amount int64) {
	t.lost = t.lost || err != nil
	holders := t.pods[in.PodUID]
	for _, c := range holders {
		its := c.container == name || name == "" && len(holders) == 1
		switch {
		case !its && name != "": // It is of another container.
		case !its, amount == unknown, t.sums[c] == unknown:
			t.sums[c] = unknown
		default:
			t.sums[c] += amount
		}
	}
}

// overuse is enforcer evict: it warns and evicts pods with containers over their share,
// as [enforce.CheckUses] decides. It is for one goroutine.
type overuse struct {
	api     *apiserver.Client
	timings map[enforce.Subject]enforce.Timing
	evicted *prometheus.CounterVec
}

func newOveruse(options *Options) overuse {
	o := overuse{
		api: options.API,
		evicted: promauto.With(options.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_overuse_evictions_total",
			Help: "Pods that enforcer evict ended: over their memory, or on a full GPU for one of a higher priority.",
		}, []string{"reason"}),
	}
	for _, excess := range []enforce.Excess{enforce.OverMemory, enforce.FullGPU} {
		o.evicted.WithLabelValues(string(excess))
	}
	return o
}

// check acts on what containers use now. The next check repeats an eviction that failed.
func (o *overuse) check(ctx context.Context, now time.Time, uses []enforce.Use) {
	var actions []enforce.Action
	actions, o.timings = enforce.CheckUses(now, uses, o.timings)
	for i := range actions {
		a := &actions[i]
		pod := kubelet.Pod{Namespace: a.Namespace, Name: a.Pod, UID: a.UID}
		if !a.Evict {
			o.api.WarnPod(pod, wellknown.EventShareExceeded, a.Message)
		} else if o.api.EvictFor(ctx, pod, wellknown.EventShareEvicted, a.Message) {
			o.evicted.WithLabelValues(string(a.Excess)).Inc()
		}
	}
}

// uses returns the shares and the use of all containers with shares. A terminating pod is not
// evicted again; nor is a static pod: it would come back at once, and the API server cannot end it.
func uses(
	m *machine.Machine, allocations []report.Binding, used map[consumer]consumed, pods []*corev1.Pod,
) []enforce.Use {
	byUID := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		// The kubelet knows a static pod by the hash of its file.
		byUID[cmp.Or(p.Annotations[corev1.MirrorPodAnnotationKey], string(p.UID))] = p
	}
	var all []enforce.Use
	for i := range allocations {
		b := &allocations[i]
		p := byUID[b.UID]
		if p == nil {
			continue
		}
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		for _, s := range b.Shares {
			at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID })
			if at < 0 {
				continue
			}
			now := usedBy(used, b, s.UUID)
			all = append(all, enforce.Use{
				Namespace: b.Namespace, Pod: b.Pod, UID: b.UID, Container: b.Container,
				GPU: s.UUID, Index: m.GPUs[at].Index, Total: m.GPUs[at].MemoryMiB << 20, Share: s.MemoryMiB << 20,
				Used: now.bytes, SM: now.sm, Percent: unlimited(b, s), Priority: allocate.Priority(p),
				Evictable:   b.Enforced.Memory == config.EnforceEvict && !mirror && s.MemoryMiB > 0,
				Terminating: p.DeletionTimestamp != nil,
			})
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
