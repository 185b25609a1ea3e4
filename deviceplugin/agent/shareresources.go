package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
)

// This file has which resources of shares a node serves.

// withoutCDI is why a node that shares GPUs serves no share of them; empty if it
// serves some, or shares none. CDI alone can bring GPUs that are chosen when a
// container starts.
func (c *core) withoutCDI() string {
	if c.Strategy != gpu.Envvar || !c.sharing() {
		return ""
	}
	return "mode is sgpu, and no share is served: --device-list-strategy is envvar, which fixes a container's GPUs " +
		"before it starts, and a share's GPU is chosen then; shares take cdi"
}

// logWithoutCDI logs that once.
func (a *resources) logWithoutCDI(ctx context.Context) {
	reason := a.withoutCDI()
	if reason != "" && !a.loggedWithoutCDI {
		a.Log.WarnContext(ctx, "shares of GPUs are not served", "reason", reason)
	}
	a.loggedWithoutCDI = reason != ""
}

// shareNames are the resources of shared GPUs: replicas first. There are none of
// them where no GPU is or was shared, nor without CDI.
func (a *resources) shareNames(inv *inventory.Inventory) []string {
	if !a.sharing() || a.withoutCDI() != "" {
		return nil
	}
	names := []string{inv.Config.Resources.SGPU}
	if a.counts(inv) {
		names = append(names, inv.Config.Resources.VCore, inv.Config.Resources.VMemory)
	}
	return names
}

// counts reports whether percents and GiB of shared GPUs are served: as
// configured, or because they once were. A pod that names a resource which the
// kubelet does not know is admitted without it. One that it knows and has no
// healthy device of, which is how a resource is withdrawn, it fails for good; and
// the Node's status names it for ever after, by which the kubelet does the same.
// So what was counted once goes on being counted, which does no harm to schedulers
// that do not look at it.
func (a *resources) counts(inv *inventory.Inventory) bool {
	return inv.Config.AdvertisesShares() || a.counted || a.all()[inv.Config.Resources.VCore] != nil
}

// askCounted asks the Node, once, whether it has counted percents before this
// process began.
func (a *resources) askCounted(ctx context.Context, inv *inventory.Inventory) {
	if !a.API.Online() || a.asked || !a.sharing() || a.counts(inv) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node, err := a.API.ReadNode(ctx)
	if err != nil {
		a.Log.DebugContext(ctx, "capacity of the node is not known yet", "err", err)
		return
	}
	_, a.counted = node.Status.Capacity[corev1.ResourceName(inv.Config.Resources.VCore)]
	a.asked = true
}
