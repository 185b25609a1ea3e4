package agent

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
)

// observeTimeout bounds one observation of the kubelet.
const observeTimeout = 2 * time.Second

// inventory is the node in this round, under a release of GPUs or none.
func (a *Agent) inventory(m *machine.Machine, c *config.NodeConfig, lasting release.Request) *inventory.Inventory {
	snapshot := a.monitor.Snapshot()
	gpus := make(map[string]inventory.GPU, len(m.GPUs))
	for _, now := range a.modes.GPUs() {
		state := inventory.GPU{Mode: now.Offered, Unavailable: now.Unavailable, Draining: now.Draining}
		if found, known := snapshot.GPUs[now.UUID]; known && !found.Healthy {
			state.Unhealthy = cmp.Or(found.Reason, "unhealthy")
		}
		if !lasting.Until.IsZero() && lasting.Covers(now.UUID) {
			state.Unhealthy = cmp.Or(state.Unhealthy, release.Reason)
		}
		// A container with a share may start again while its GPU changes its mode.
		edits, err := a.driver.GPUEdits(now.UUID)
		if state.CDIEdits = edits; err != nil && (state.Mode == config.ModeSGPU || a.driver.Absent()) {
			state.CDIError = err.Error()
		}
		gpus[now.UUID] = state
	}
	inv := inventory.New(m, c, gpus, unhealthyHCAs(snapshot))
	inv.Elsewhere, inv.Channels = a.resources.elsewhere(inv), a.channels()
	return inv
}

// channels are nil where all containers with GPUs get the same.
func (c *core) channels() *inventory.Channels {
	if !c.Features.IMEXByPod {
		return nil
	}
	return &inventory.Channels{Allowed: c.Features.IMEX, Nodes: c.driver.Channels()}
}

// unhealthyHCAs are the reasons by name.
func unhealthyHCAs(s *health.Snapshot) map[string]string {
	reasons := map[string]string{}
	for i, id := range s.Machine.HCAIDs() {
		if reason := s.HCA(id).Reason; reason != "" {
			reasons[s.Machine.HCAs[i].Name] = reason
		}
	}
	return reasons
}

// writeDriverSpec writes the driver's CDI spec after every round, until ctx ends.
// It is apart from the loop: a driver that hangs must not hold back the health of
// a device.
func (a *Agent) writeDriverSpec(ctx context.Context) error {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.driverDue:
		}
		if a.Release.Active() {
			// Making it would open a session with the driver.
			_ = a.driver.Restore() // Update meets the error again.
		} else {
			_ = a.driver.Update(ctx, a.machine()) // The spec keeps the error.
		}
		wrong := a.driver.Problem()
		if wrong != logged && wrong != "" && ctx.Err() == nil {
			a.Log.WarnContext(ctx, "CDI spec of the driver is incomplete", "reason", wrong)
		}
		logged = wrong
		if !a.driverKnown() {
			close(a.driverTried)
		}
	}
}

// watchKubelet has every resource look for a kubelet, and PodResources looked at
// again, as soon as the kubelet makes the socket for plugins, until ctx ends: it
// serves PodResources before that. One watch serves all resources: inotify
// instances are few, and a watch's goroutine has a stack of 128 KiB.
func (a *Agent) watchKubelet(ctx context.Context) error {
	seen := notify.New()
	var watching sync.WaitGroup
	watching.Go(func() { server.WatchDir(ctx, a.KubeletDir, seen, a.Log) })
	defer watching.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-seen:
			a.resources.retry()
			a.kubeletStarted.Notify()
		}
	}
}

// watchModes shows the mode tracker what the kubelet offers and pods hold, while a
// mode is pending, until ctx ends.
func (a *Agent) watchModes(ctx context.Context) error {
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.modes.Pending():
		case <-a.kubeletStarted:
			if next == nil {
				continue // Nothing is pending.
			}
		case <-next:
		}
		again, renew := a.modes.Observe(a.observe(ctx))
		if renew {
			a.resources.resend()
		}
		next = nil
		if again > 0 {
			next = time.After(again)
		}
	}
}

// observe asks the kubelet what it offers, and then what pods hold.
func (a *Agent) observe(ctx context.Context) *gpumode.Observation {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	answer, err := a.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return &gpumode.Observation{Err: fmt.Errorf("kubelet PodResources, allocatable: %w", err)}
	}
	o := &gpumode.Observation{}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			o.Offered = append(o.Offered, gpumode.Device{Resource: d.GetResourceName(), ID: id})
		}
	}
	held, err := a.state.Held(ctx)
	o.Err = err
	for _, h := range held {
		o.Held = append(o.Held, gpumode.Held{
			Device: gpumode.Device{Resource: h.Resource, ID: h.ID}, By: h.Pod, Unverified: h.Unlisted,
		})
	}
	return o
}
