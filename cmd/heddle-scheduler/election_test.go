package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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
	deadline := time.After(5 * time.Second)
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

// A scheduler that was stopped for longer than its Lease lasts goes on with what it had decided:
// none of it is bound while another replica has the Lease, or may have it.
func TestNoBindingWithoutTheLease(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	held := func(by string, renewed time.Time) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "heddle-system", Name: "heddle-scheduler"},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &by, LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NewMicroTime(renewed)),
			},
		}
	}
	elections := prometheus.NewRegistry()
	leads := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "As client-go has it.",
	}, []string{"name"})
	leads.WithLabelValues("kube-scheduler").Set(1)
	elections.MustRegister(leads)
	w := unscheduled(t, node("n0", 4), node("n1", 4))
	w.elections = elections
	w.add(held("other_b", time.Now()))
	w.schedule(withArgs(loaded(t, documented),
		args(`"leaderElection": {"resourceName": "heddle-scheduler", "resourceNamespace": "heddle-system"}`)))
	w.gang("x", 2, 4, 2)
	w.add(pod("plain", 0, nil))
	rejected := func(reason string) {
		w.until("nothing bound: "+reason, func(pods map[string]*corev1.Pod) bool {
			return strings.Contains(why(pods["plain"]), "another scheduler may lead: lease heddle-system/heddle-scheduler "+reason)
		})
		if n := bound(w.pods(), ""); n > 0 {
			t.Fatalf("%d pods are bound", n)
		}
	}
	rejected("is held by other_b")
	leases := w.client.CoordinationV1().Leases("heddle-system")
	if _, err := leases.Update(t.Context(), held(host+"_a", time.Now().Add(-time.Minute)), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	rejected("was not renewed since")
	if _, err := leases.Update(t.Context(), held(host+"_a", time.Now().Add(time.Hour)), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("all bound by the leader", func(pods map[string]*corev1.Pod) bool { return bound(pods, "") == 3 })
}
