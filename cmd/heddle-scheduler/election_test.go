package main

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/heddle-dev/heddle/topo/scheduler/controller"
)

// The plugin learns of client-go's election from its metric.
func TestElection(t *testing.T) {
	// Another process has the lease.
	client := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "heddle-scheduler"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("other"), LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro()),
		},
	})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		// As kube-scheduler calls its own.
		Name: "kube-scheduler", LeaseDuration: time.Hour, RenewDeadline: time.Minute, RetryPeriod: 20 * time.Millisecond,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "heddle-scheduler"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: "self"},
		},
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); elector.Run(ctx) }()
	defer func() { stop(); <-done }()
	for elector.GetLeader() != "other" {
		<-time.After(5 * time.Millisecond)
	}
	if leads, known := controller.Won(legacyregistry.DefaultGatherer); leads || !known {
		t.Errorf("another has won: leads %v, known %v", leads, known)
	}
	if err := client.CoordinationV1().Leases("default").Delete(t.Context(), "heddle-scheduler", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for !elector.IsLeader() {
		<-time.After(5 * time.Millisecond)
	}
	deadline := time.After(5 * time.Minute)
	for {
		leads, known := controller.Won(legacyregistry.DefaultGatherer)
		if leads && known {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("this one has won: leads %v, known %v", leads, known)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
