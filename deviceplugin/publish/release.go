package publish

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

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
	return request.Covers(uuid) || request.Covers(r.Inventory.ParentOf(uuid)) || request.Covers(machine.PartitionOf(uuid))
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
		unseen = fmt.Sprintf("%d processes could not be looked into, which takes gpuDevice.driverAccess: host", hidden)
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
