package agent

import (
	"context"
	"fmt"

	"github.com/heddle-dev/heddle/api/config"
)

// Counts knows which resources a Node has ever counted.
type Counts interface {
	// Counted tells whether the Node's status names a resource, be it 0 of it.
	Counted(ctx context.Context, resource string) (bool, error)
}

// Counted implements [Counts].
func (k *Kube) Counted(ctx context.Context, resource string) (bool, error) {
	node, err := k.read(ctx)
	if err != nil {
		return false, err
	}
	for name := range node.Status.Capacity {
		if string(name) == resource {
			return true, nil
		}
	}
	return false, nil
}

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
	if a.Counts == nil || a.learned || !a.shares() || a.counts(c) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	named, err := a.Counts.Counted(ctx, c.Resources.VCore)
	if err != nil {
		a.Log.DebugContext(ctx, "what the Node has counted is not known yet", "err", fmt.Errorf("counted resources: %w", err))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.learned, a.named = true, named
}
