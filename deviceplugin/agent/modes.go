package agent

import (
	"context"
	"fmt"
	"strings"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/mode"
)

// The reasons of [mode.ConditionType], and the cause of devices that no pod can
// get on purpose.
const (
	reasonPending  = "ModePending"
	reasonAsWished = "AsConfigured"

	// Cordoned is a card that an operator took out.
	Cordoned health.Cause = "Cordoned"
)

// accounts is the kubelet's account of devices for the modes of cards.
type accounts struct {
	pods   podresources.PodResourcesListerClient
	binder *binder.Binder
	// served are the resources whose lists the kubelet hears.
	served func() map[string]*served
}

// Offered implements [mode.Kubelet].
func (a *accounts) Offered(ctx context.Context) ([]mode.Device, error) {
	answer, err := a.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("kubelet PodResources, allocatable: %w", err)
	}
	var offered []mode.Device
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			offered = append(offered, mode.Device{Resource: d.GetResourceName(), ID: id})
		}
	}
	return offered, nil
}

// Held implements [mode.Kubelet].
func (a *accounts) Held(ctx context.Context) ([]mode.Held, error) {
	all, err := a.binder.Held(ctx)
	held := make([]mode.Held, 0, len(all))
	for _, h := range all {
		held = append(held, mode.Held{
			Device: mode.Device{Resource: h.Resource, ID: h.ID}, By: h.Pod, Doubtful: h.Unlisted,
		})
	}
	return held, err
}

// Renew implements [mode.Kubelet]: a list of any resource will do.
func (a *accounts) Renew() {
	for _, s := range a.served() {
		if s.plugin.Status().Registered {
			s.plugin.Resend()
			return
		}
	}
}

// cordon takes the cards that the Node says an operator took out.
func (a *Agent) cordon() {
	if text, known := a.API.Annotation(wellknown.CordonedGPUs); known {
		a.modes.Cordon(text)
	}
}

// cardStates are the node's for the report.
func (a *Agent) cardStates() []report.Card {
	all := a.modes.Cards()
	cards := make([]report.Card, 0, len(all))
	for _, c := range all {
		cards = append(cards, report.Card{
			Index: c.Index, UUID: c.UUID, Mode: string(c.Mode), Wanted: string(c.Wanted), Until: c.Until, Cordoned: c.Cordoned,
		})
	}
	return cards
}

// modeCondition says which cards are handed out in another mode than the
// configuration wants, and what they wait for.
func modeCondition(cards []report.Card) health.Condition {
	var parts []string
	for i := range cards {
		if text := cards[i].Pending(); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return health.Condition{
			Type: mode.ConditionType, Reason: reasonAsWished, Message: "every card is handed out as configured", Optional: true,
		}
	}
	return health.Condition{
		Type: mode.ConditionType, True: true, Reason: reasonPending, Message: health.Cut(strings.Join(parts, "; ")),
		Optional: true,
	}
}

// withheld tells why nobody new gets a card that is well: an operator took it
// out, or it waits for its holders to change its mode.
func (a *Agent) withheld(uuid string) (cordoned, pending bool) {
	for _, c := range a.modes.Cards() {
		if c.UUID == uuid {
			return c.Cordoned, c.Until != ""
		}
	}
	return false, false
}
