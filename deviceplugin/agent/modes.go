package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/mode"
)

// The reasons of [mode.ConditionType], and the cause of devices that no pod can
// get on purpose.
const (
	reasonPending    = "ModePending"
	reasonConfigured = "AsConfigured"

	// Cordoned is a GPU that an operator took out.
	Cordoned health.Cause = "Cordoned"
)

// observeTimeout bounds one observation of the kubelet.
const observeTimeout = 2 * time.Second

// watchModes shows the mode tracker what the kubelet offers and pods hold, while a
// mode is pending, until ctx ends.
func (a *Agent) watchModes(ctx context.Context) error {
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.modes.Pending():
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
func (a *Agent) observe(ctx context.Context) *mode.Observation {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	answer, err := a.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return &mode.Observation{Err: fmt.Errorf("kubelet PodResources, allocatable: %w", err)}
	}
	o := &mode.Observation{}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			o.Offered = append(o.Offered, mode.Device{Resource: d.GetResourceName(), ID: id})
		}
	}
	held, err := a.state.Held(ctx)
	o.Err = err
	for _, h := range held {
		o.Held = append(o.Held, mode.Held{
			Device: mode.Device{Resource: h.Resource, ID: h.ID}, By: h.Pod, Unverified: h.Unlisted,
		})
	}
	return o
}

// cordon takes the GPUs that an operator took out, by the Node's annotation.
func (a *Agent) cordon() {
	if text, known := a.API.Annotation(wellknown.CordonedGPUs); known {
		a.modes.Cordon(text)
	}
}

// modeCondition names the GPUs that are handed out in another mode than the
// configuration wants, and what they wait for.
func modeCondition(gpus []report.GPU) health.Condition {
	var parts []string
	for i := range gpus {
		if text := gpus[i].Pending(); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return health.Condition{
			Type: mode.ConditionType, Reason: reasonConfigured, Message: "every GPU is handed out as configured", Optional: true,
		}
	}
	return health.Condition{
		Type: mode.ConditionType, True: true, Reason: reasonPending, Message: health.Cut(strings.Join(parts, "; ")),
		Optional: true,
	}
}

// modeStates are the modes of GPUs for the report.
func modeStates(all []mode.GPU) []report.GPU {
	gpus := make([]report.GPU, 0, len(all))
	for _, g := range all {
		gpus = append(gpus, report.GPU{
			Index: g.Index, UUID: g.UUID, Mode: string(g.Mode), Wanted: string(g.Wanted), Until: g.Until, Cordoned: g.Cordoned,
		})
	}
	return gpus
}
