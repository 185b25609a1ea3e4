package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/host"
)

const (
	publishTimeout = 10 * time.Second
	// publishAgain is the time for which the Node is trusted to keep the written conditions.
	publishAgain = 5 * time.Minute
	// releaseRetry is the time between two answers to a request for a release until
	// the GPUs are released: an operator waits for that.
	releaseRetry = 500 * time.Millisecond
)

// Options configures a Publisher.
type Options struct {
	API          *apiserver.Client
	State        *devicestate.State
	PodResources podresources.PodResourcesListerClient
	Processes    cgroup.Proc
	// Session is with the driver of the GPUs; nil for a replayed machine.
	Session *host.Release
	Log     *slog.Logger
	// Last is the last round.
	Last       *atomic.Pointer[Round]
	Registerer prometheus.Registerer
}

// Publisher keeps the Node's conditions, annotations and taint as [Desired] has them.
// It is for one goroutine.
type Publisher struct {
	Options
	// written are the conditions that the Node has since writtenAt, and notices those of the last
	// round.
	written   []health.Condition
	writtenAt time.Time
	notices   map[string]health.NodeEvent

	active  prometheus.Gauge
	evicted prometheus.Counter
}

// New makes a Publisher of the node.
func New(o Options) *Publisher {
	metrics := promauto.With(o.Registerer)
	return &Publisher{
		Options: o,
		active: metrics.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_remediation_active",
			Help: "1 while health.remediation has the Node cordoned because a GPU stays unhealthy.",
		}),
		evicted: metrics.NewCounter(prometheus.CounterOpts{
			Name: "heddle_remediation_evicted_pods_total",
			Help: "Pods that health.remediation evicted because their GPU stays unhealthy.",
		}),
	}
}

// Publish writes what the Node does not show of the last round yet. It returns after how long at most to call it
// again, or most.
func (p *Publisher) Publish(ctx context.Context, most time.Duration) time.Duration {
	if !p.API.Online() {
		return most
	}
	within, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	r := *p.Last.Load()
	err := errors.Join(p.ask(within, &r), p.apply(within, Desired(&r)))
	if err != nil && ctx.Err() == nil {
		p.Log.WarnContext(ctx, "publishing devices failed", "err", err)
	}
	if status := r.Usage.Release; status != nil && !status.Released {
		return releaseRetry
	}
	return most
}

// ask finds out who uses the devices of a round.
func (p *Publisher) ask(ctx context.Context, r *Round) error {
	u := &r.Usage
	u.At, u.Holders = time.Now(), map[string]map[string]bool{}
	u.Tainted, u.NodeKnown = p.API.Tainted(wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule)
	u.Pods, _, _ = p.API.Pods()
	var errs []error
	for _, name := range r.gpuResources() {
		held, err := p.State.Holders(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("holders of GPUs: %w", err))
			continue
		}
		u.Holders[name] = held
	}
	released := !r.Release.Until.IsZero()
	if released || r.Inventory.Config.Health.Remediation == config.RemediationDrain {
		u.Containers = p.containers(ctx)
	}
	if released {
		u.Release = p.releaseStatus(ctx, r)
	}
	return errors.Join(errs...)
}

// containers lists the containers and the claims that hold GPUs. A pod that has ended keeps its checkpoint entry
// for a while, and no claim.
func (p *Publisher) containers(ctx context.Context) []report.Binding {
	held, err := p.State.Held(ctx)
	return slices.DeleteFunc(p.State.View().Allocations(), func(b report.Binding) bool {
		holds := func(h inventory.Held) bool { return h.Pod == b.Namespace+"/"+b.Pod }
		return err == nil && b.Claim == "" && !slices.ContainsFunc(held, holds)
	})
}

// apply writes what the Node does not show yet, and evicts pods as far as their budgets and the rate
// allow.
func (p *Publisher) apply(ctx context.Context, s *Status) error {
	var errs []error
	if cordon, known := s.Taints[wellknown.UnhealthyGPU]; known {
		p.active.Set(map[bool]float64{true: 1}[cordon])
	}
	for key, on := range s.Taints {
		errs = append(errs, p.API.SetTaint(ctx, key, corev1.TaintEffectNoSchedule, on))
	}
	for subject, notice := range s.Notices {
		if _, before := p.notices[subject]; !before {
			p.Log.InfoContext(ctx, "event on the Node", "reason", notice.Reason, "message", notice.Message)
			p.API.Record(notice)
		}
	}
	p.notices = s.Notices
	if !slices.Equal(s.Conditions, p.written) || time.Since(p.writtenAt) >= publishAgain {
		if err := p.API.SetConditions(ctx, s.Conditions, s.Annotations); err != nil {
			errs = append(errs, err)
		} else {
			p.written, p.writtenAt = s.Conditions, time.Now()
		}
	}
	errs = append(errs, p.API.ShowAnnotations(ctx, s.Annotations))
	for _, pod := range s.Evict {
		if p.API.EvictFor(ctx, apiserver.Ref(pod), wellknown.EventUnhealthyGPUEvicted, s.EvictReason) {
			p.evicted.Inc()
		}
	}
	return errors.Join(errs...)
}

// maxHolders bounds the pods and the processes in an answer: all annotations of a
// Node have 256 KiB.
const maxHolders = 128

// releaseStatus returns the progress of a release, and the remaining holders of the GPUs.
func (p *Publisher) releaseStatus(ctx context.Context, r *Round) *release.Status {
	s := &release.Status{Request: r.Release, Message: p.releaseWaits(ctx, r), Pods: holders(r, r.Release)}
	s.Released = s.Message == ""
	s.Processes, s.Unseen = p.processes(r)
	s.More = max(0, len(s.Pods)-maxHolders) + max(0, len(s.Processes)-maxHolders)
	s.Pods = s.Pods[:min(len(s.Pods), maxHolders)]
	s.Processes = s.Processes[:min(len(s.Processes), maxHolders)]
	return s
}

// releaseWaits describes what the release waits for; empty once it is complete.
func (p *Publisher) releaseWaits(ctx context.Context, r *Round) string {
	closed, err := p.Session.Closed()
	switch {
	case err != nil:
		return "the session with the driver is still open: " + err.Error()
	case !closed && p.Session != nil:
		return "the session with the driver is still open"
	}
	answer, err := p.PodResources.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return "what the kubelet offers is not known: " + err.Error()
	}
	offered := map[string]bool{}
	for _, d := range answer.GetDevices() {
		for _, uuid := range inventory.DevicesOf(d.GetDeviceIds()) {
			if _, isGPU := r.Inventory.GPUs[uuid]; isGPU && r.covers(r.Release, uuid) {
				offered[uuid] = true
			}
		}
	}
	if len(offered) > 0 {
		return fmt.Sprintf("the kubelet still offers %d of the GPUs", len(offered))
	}
	return ""
}

// covers reports whether a release covers a GPU, or the one that a MIG device or a
// partition is cut from.
func (r *Round) covers(request release.Request, uuid string) bool {
	parent := r.Inventory.Machine.ParentGPU(uuid)
	return request.Covers(uuid) || request.Covers(parent) || request.Covers(machine.PartitionOf(uuid))
}

// holders returns the containers that have GPUs of a request.
func holders(r *Round, request release.Request) []release.Pod {
	var pods []release.Pod
	for i := range r.Usage.Containers {
		b := &r.Usage.Containers[i]
		uuids := slices.Clone(b.GPUs)
		for _, share := range b.Shares {
			uuids = append(uuids, share.UUID)
		}
		uuids = slices.DeleteFunc(uuids, func(uuid string) bool { return !r.covers(request, uuid) })
		slices.Sort(uuids)
		if uuids = slices.Compact(uuids); len(uuids) > 0 {
			pods = append(pods, release.Pod{Namespace: b.Namespace, Name: b.Pod, Container: b.Container, GPUs: uuids})
		}
	}
	return pods
}

// processes lists the processes with an open device node of a GPU, and explains why the list may be
// incomplete.
func (p *Publisher) processes(r *Round) (all []release.Process, unseen string) {
	if !p.Processes.HostPIDs() {
		return nil, "heddle-device-plugin is not in the host's PID namespace (hostPID), so it does not see which processes " +
			"have device nodes open: the chart's gpuDevice.usageMetrics puts it there"
	}
	var nodes []string
	for _, v := range r.Vendors.Present(r.Inventory.Machine) {
		nodes = append(nodes, v.Node)
	}
	found, hidden, err := p.Processes.Openers(nodes)
	switch {
	case err != nil:
		return nil, err.Error()
	case hidden > 0:
		unseen = fmt.Sprintf("%d processes could not be looked into, which takes driver.access: auto", hidden)
	}
	for _, o := range found {
		one := release.Process{PID: o.PID, Command: o.Command, Devices: o.Paths}
		if c, err := p.Processes.Container(o.PID); err == nil {
			one.Pod = c.PodUID
			named := func(pod *corev1.Pod) bool { return string(pod.UID) == c.PodUID }
			if at := slices.IndexFunc(r.Usage.Pods, named); at >= 0 {
				one.Pod = r.Usage.Pods[at].Namespace + "/" + r.Usage.Pods[at].Name
			}
		}
		all = append(all, one)
	}
	return all, unseen
}
