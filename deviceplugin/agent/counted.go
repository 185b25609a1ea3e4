package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
)

// counts tells whether the kubelet hears of percents and GiB of shared cards: as
// configured, or because it once did. A pod that names a resource which the
// kubelet does not know is admitted without it. One that it knows and has no
// healthy device of, which is how a resource is withdrawn, it fails for good;
// and the Node's status names it for ever after, by which the kubelet does the
// same. So what was counted once goes on being counted, which does no harm to
// schedulers that do not look at it.
func (a *Agent) counts(c *config.NodeConfig) bool {
	if c.SGPU.AdvertisesShares() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.named || a.served[c.Resources.VCore] != nil
}

// learnCounted asks the Node, once, whether it has counted percents before this
// process began.
func (a *Agent) learnCounted(ctx context.Context, c *config.NodeConfig) {
	if !a.API.Online() || a.learned || !a.shares() || a.counts(c) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node, err := a.API.ReadNode(ctx)
	if err != nil {
		a.Log.DebugContext(ctx, "capacity of the node is not known yet", "err", err)
		return
	}
	_, named := node.Status.Capacity[corev1.ResourceName(c.Resources.VCore)]
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned, a.named = true, named
}
