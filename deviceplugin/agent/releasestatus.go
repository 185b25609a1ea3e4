package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
)

const (
	// releaseRetry is how soon the answer to a request for a release is looked at
	// again that an operator waits for.
	releaseRetry = 500 * time.Millisecond
	// maxHolders bounds the pods and the processes in an answer: all annotations of
	// a Node have 256 KiB.
	maxHolders = 128
)

// publishRelease answers to the request for a release in an annotation of the
// Node, and takes the answer back after it. again reports that the GPUs are not
// released yet.
func (p *publisher) publishRelease(ctx context.Context, r release.Request) (again bool, err error) {
	now, known := p.API.Annotation(wellknown.GPUReleaseStatus)
	if !known {
		return false, nil
	}
	var text []byte
	if !r.Until.IsZero() {
		status := p.releaseStatus(ctx, r)
		again = !status.Released
		if text, err = json.Marshal(status); err != nil {
			return again, fmt.Errorf("encode %s: %w", wellknown.GPUReleaseStatus, err)
		}
	}
	if string(text) == now {
		return again, nil
	}
	return again, p.API.AnnotateNode(ctx, "", map[string]*string{wellknown.GPUReleaseStatus: valueOrNone(string(text))})
}

// releaseStatus is how far the release is, and what still holds the GPUs.
func (p *publisher) releaseStatus(ctx context.Context, r release.Request) release.Status {
	s := release.Status{Request: r, Message: p.releaseWaits(ctx, r)}
	s.Released = s.Message == ""
	s.Pods = p.podsWith(ctx, r)
	s.Processes, s.Unseen = p.processes()
	s.More = max(0, len(s.Pods)-maxHolders) + max(0, len(s.Processes)-maxHolders)
	s.Pods = s.Pods[:min(len(s.Pods), maxHolders)]
	s.Processes = s.Processes[:min(len(s.Processes), maxHolders)]
	return s
}

// releaseWaits is what the release waits for; empty once nothing is missing.
func (p *publisher) releaseWaits(ctx context.Context, r release.Request) string {
	closed, err := p.Release.Closed()
	switch {
	case err != nil:
		return "the session with the driver is still open: " + err.Error()
	case !closed && p.Release != nil:
		return "the session with the driver is still open"
	}
	answer, err := p.resources.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return "what the kubelet offers is not known: " + err.Error()
	}
	inv, offered := p.now.Load(), map[string]bool{}
	for _, d := range answer.GetDevices() {
		for _, uuid := range replica.Devices(d.GetDeviceIds()) {
			if _, isGPU := inv.GPUs[uuid]; isGPU && covers(inv, r, uuid) {
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
func covers(inv *inventory.Inventory, r release.Request, uuid string) bool {
	return r.Covers(uuid) || r.Covers(inv.ParentOf(uuid)) || r.Covers(machine.PartitionOf(uuid))
}

// podsWith are the containers that have GPUs of the request.
func (p *publisher) podsWith(ctx context.Context, r release.Request) []release.Pod {
	inv := p.now.Load()
	// A pod that has ended keeps its checkpoint entry for a while.
	held, err := p.state.Held(ctx)
	holds := map[string]bool{}
	for _, h := range held {
		holds[h.Pod] = true
	}
	var pods []release.Pod
	for _, b := range p.state.View().Allocations() {
		if err == nil && !holds[b.Namespace+"/"+b.Pod] {
			continue
		}
		uuids := slices.Clone(b.GPUs)
		for _, share := range b.Shares {
			uuids = append(uuids, share.UUID)
		}
		uuids = slices.DeleteFunc(uuids, func(uuid string) bool { return !covers(inv, r, uuid) })
		slices.Sort(uuids)
		if uuids = slices.Compact(uuids); len(uuids) > 0 {
			pods = append(pods, release.Pod{Namespace: b.Namespace, Name: b.Pod, Container: b.Container, GPUs: uuids})
		}
	}
	return pods
}

// processes are those that have a device node of a GPU open, and why there may be
// more.
func (p *publisher) processes() (all []release.Process, unseen string) {
	if !p.Processes.HostPIDs() {
		return nil, "heddle-device-plugin is not in the host's PID namespace (hostPID), so it does not see which processes " +
			"have device nodes open: the chart's gpuDevice.usageMetrics puts it there"
	}
	var nodes []string
	for _, v := range p.Vendors.Present(p.machine()) {
		nodes = append(nodes, v.Node)
	}
	found, hidden, err := p.Processes.Openers(nodes)
	switch {
	case err != nil:
		return nil, err.Error()
	case hidden > 0:
		unseen = fmt.Sprintf("%d processes could not be looked into, which takes gpuDevice.driverAccess: host", hidden)
	}
	pods, _, _ := p.API.Pods()
	for _, o := range found {
		one := release.Process{PID: o.PID, Command: o.Command, Devices: o.Paths}
		if c, err := p.Processes.Container(o.PID); err == nil {
			one.Pod = c.PodUID
			for _, pod := range pods {
				if string(pod.UID) == c.PodUID {
					one.Pod = pod.Namespace + "/" + pod.Name
				}
			}
		}
		all = append(all, one)
	}
	return all, unseen
}
