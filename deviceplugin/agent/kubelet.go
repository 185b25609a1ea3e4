package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// observeTimeout bounds one observation of the kubelet.
	observeTimeout = 2 * time.Second
	// holdersEvery is the interval between checks of the holders of devices while some wait for
	// theirs.
	holdersEvery = 5 * time.Second
)

// watchKubelet has every resource look for a kubelet, and PodResources looked at again,
// as soon as the kubelet makes the socket for plugins, until ctx ends: it serves
// PodResources before that. One watch serves all resources: inotify instances are few,
// and a watch's goroutine has a stack of 128 KiB.
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
			for _, s := range a.resources.all() {
				s.plugin.Retry()
			}
			a.kubeletStarted.Notify()
		}
	}
}

// watchHeld shows the mode tracker what the kubelet offers and pods hold, while a mode is pending, and asks for the
// holders of devices that wait for theirs, until ctx ends.
func (a *Agent) watchHeld(ctx context.Context) error {
	ticker := time.NewTicker(holdersEvery)
	defer ticker.Stop()
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for name, s := range a.resources.all() {
				if s.plugin.NeedsHolders() {
					a.resources.askHolders(ctx, name, s.plugin)
				}
			}
			continue
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
	o := &gpumode.Observation{Asked: time.Now()}
	answer, err := a.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return &gpumode.Observation{Err: fmt.Errorf("kubelet PodResources, allocatable: %w", err)}
	}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			o.Offered = append(o.Offered, gpumode.Device{Resource: d.GetResourceName(), ID: id})
		}
	}
	// Before what pods hold: a call that ends in between has recorded its devices.
	for name, s := range a.resources.all() {
		for _, id := range s.plugin.InFlight() {
			o.Held = append(o.Held, gpumode.Held{
				Device: gpumode.Device{Resource: name, ID: id}, By: "a pod that is being admitted",
			})
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
