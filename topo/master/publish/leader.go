package publish

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Lease names the replicas' lock.
type Lease struct {
	Namespace, Name string
	// Identity is the replica's: its pod's name.
	Identity string
}

// The times of client-go's own components: a leader that is gone is followed
// within 15 s, one that stops within 2 s.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// Run writes whenever this replica leads, until ctx ends. A lease that is lost
// ends the writing, not the replica, which goes on to answer.
func (p *Publisher) Run(ctx context.Context, config *rest.Config, lease Lease) error {
	config = rest.CopyConfig(config)
	config.Timeout = renewDeadline / 2
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for leases: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name},
		Client:     client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: lease.Identity},
	}
	// The elector starts the callback and does not wait for it: a term waits
	// here for the end of the one before, and the end for the last.
	var term sync.Mutex
	defer func() {
		term.Lock()
		defer term.Unlock()
	}()
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, Name: lease.Name, ReleaseOnCancel: true,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					term.Lock()
					defer term.Unlock()
					p.options.Log.InfoContext(ctx, "started leading", "identity", lease.Identity)
					p.Lead(ctx)
					p.options.Log.InfoContext(ctx, "stopped leading", "identity", lease.Identity)
				},
				OnStoppedLeading: func() {}, // The context of the term ends too.
			},
		})
		if err != nil {
			return fmt.Errorf("elect a leader: %w", err)
		}
		elector.Run(ctx)
	}
	return nil
}
