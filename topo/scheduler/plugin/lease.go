package plugin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/heddle-dev/heddle/topo/scheduler/controller"
)

// lease is the Lease of the leader election, which is looked at before a pod is bound.
//
// kube-scheduler ends when it cannot renew its Lease, and not before its renewDeadline: a
// process that was stopped for longer than the Lease lasts goes on beside the new leader for
// up to ten seconds. The API server takes the bindings of both, and a node can get more pods
// than it has GPUs for.
//
// RenewTime is of this process' own clock if it is the holder, and others wait for the whole
// duration from when they saw it. Until then no other leads, whatever the difference of the
// clocks. So one read lasts for some time, and costs no request per pod.
type lease struct {
	client kubernetes.Interface
	LeaseArgs
	// elections are as in Process; without an election nothing is looked at.
	elections prometheus.Gatherer
	// host begins the identity that kube-scheduler chooses.
	host string

	mu sync.Mutex
	// holder is this process' identity, once it is known; until is how long it surely leads.
	holder string
	until  time.Time
}

func newLease(client kubernetes.Interface, args LeaseArgs, elections prometheus.Gatherer) (*lease, error) {
	host, err := os.Hostname() // As kube-scheduler does.
	if err != nil {
		return nil, fmt.Errorf("read the name of the host: %w", err)
	}
	return &lease{client: client, LeaseArgs: args, elections: elections, host: host}, nil
}

// lost is why this process may not be the leader any longer; nil if it surely is.
func (l *lease) lost(ctx context.Context) error {
	if l.ResourceName == "" {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.elections == nil || time.Now().Before(l.until) {
		return nil
	}
	if _, known := controller.Won(l.elections); !known {
		l.elections = nil
		return nil
	}
	name := l.ResourceNamespace + "/" + l.ResourceName
	object, err := l.client.CoordinationV1().Leases(l.ResourceNamespace).Get(ctx, l.ResourceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // No other process has it.
	}
	if err != nil {
		return fmt.Errorf("read lease %s: %w", name, err)
	}
	s := &object.Spec
	if s.HolderIdentity == nil || s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return fmt.Errorf("lease %s has no holder", name)
	}
	if !strings.HasPrefix(*s.HolderIdentity, l.host+"_") || l.holder != "" && l.holder != *s.HolderIdentity {
		return fmt.Errorf("lease %s is held by %s", name, *s.HolderIdentity)
	}
	// The last third is for the request to arrive: kube-scheduler gives up as early.
	until := s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second * 2 / 3)
	if !time.Now().Before(until) {
		return fmt.Errorf("lease %s was not renewed since %s", name, s.RenewTime.UTC().Format(time.RFC3339))
	}
	l.holder, l.until = *s.HolderIdentity, until
	return nil
}
