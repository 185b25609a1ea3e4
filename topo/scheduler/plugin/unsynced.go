package plugin

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
)

// unsyncedAfter is how long the informers have, and the time between two reports.
const unsyncedAfter = 15 * time.Second

// reportUnsynced names the kinds that kube-scheduler waits for, until there are none:
// /readyz withholds its reason, and an API server that does not serve a kind, or an
// account that may not list it, keeps kube-scheduler waiting for ever.
func reportUnsynced(ctx context.Context, factory informers.SharedInformerFactory, log *slog.Logger) {
	_ = wait.PollUntilContextCancel(ctx, unsyncedAfter, false, func(ctx context.Context) (done bool, err error) {
		kinds, started := unsynced(factory)
		if len(kinds) > 0 {
			log.ErrorContext(ctx,
				"not ready: no list of these kinds yet; they are not served, or the account may not list them", "kinds", kinds)
		}
		return started && len(kinds) == 0, nil
	})
}

// unsynced are the kinds of which the informer has no list yet.
func unsynced(factory informers.SharedInformerFactory) (kinds []string, started bool) {
	now := make(chan struct{})
	close(now)
	all := factory.WaitForCacheSync(now)
	for kind, synced := range all {
		if !synced {
			kinds = append(kinds, kind.Elem().String())
		}
	}
	slices.Sort(kinds)
	return kinds, len(all) > 0
}
