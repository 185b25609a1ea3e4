package plugin

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// elections are the metrics of a process that has won its election.
func elections() *prometheus.Registry {
	r := prometheus.NewRegistry()
	status := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leader_election_master_status", Help: "As client-go has it.",
	}, []string{"name"})
	status.WithLabelValues("kube-scheduler").Set(1)
	r.MustRegister(status)
	return r
}

// leaseOf is a Lease of 15 seconds that was renewed some time ago.
func leaseOf(holder string, renewed time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "heddle-system", Name: "heddle-scheduler"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)),
			RenewTime: new(metav1.NewMicroTime(time.Now().Add(-renewed))),
		},
	}
}

func testedLease(t *testing.T, of ...runtime.Object) (*lease, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(of...)
	l, err := newLease(client, LeaseArgs{ResourceNamespace: "heddle-system", ResourceName: "heddle-scheduler"}, elections())
	if err != nil {
		t.Fatal(err)
	}
	return l, client
}

func TestLease(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		lease   *coordinationv1.Lease
		change  func(*lease)
		lost    string
		request int
	}{
		{"renewed just now", leaseOf(host+"_a", time.Second), nil, "", 1},
		{"not renewed within its deadline", leaseOf(host+"_a", 11*time.Second), nil, "was not renewed since", 1},
		{"of another process", leaseOf("other_b", 0), nil, "is held by other_b", 1},
		{"of another process on this host", leaseOf(host+"_b", 0), func(l *lease) { l.holder = host + "_a" }, "is held by", 1},
		{"without a holder", leaseOf("", 0), nil, "is held by", 1},
		{"deleted", nil, nil, "", 1},
		{"not named", leaseOf("other_b", 0), func(l *lease) { l.ResourceName = "" }, "", 0},
		{"without an election", leaseOf("other_b", 0), func(l *lease) { l.elections = prometheus.NewRegistry() }, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.lease != nil {
				objects = append(objects, tt.lease)
			}
			l, client := testedLease(t, objects...)
			if tt.change != nil {
				tt.change(l)
			}
			err := l.lost(t.Context())
			if (err == nil) != (tt.lost == "") || err != nil && !strings.Contains(err.Error(), tt.lost) {
				t.Errorf("lost %v, want %q", err, tt.lost)
			}
			if n := len(client.Actions()); n != tt.request {
				t.Errorf("%d requests, want %d", n, tt.request)
			}
		})
	}
}

// A gang of thousands costs one request, and an API server that does not answer stops all.
func TestLeaseIsReadOnce(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	l, client := testedLease(t, leaseOf(host+"_a", 0))
	for range 1000 {
		if err := l.lost(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(client.Actions()); n != 1 {
		t.Errorf("%d requests for 1000 pods", n)
	}
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no answer")
	})
	l.until = time.Time{}
	if err := l.lost(t.Context()); err == nil || !strings.Contains(err.Error(), "read lease heddle-system/heddle-scheduler: no answer") {
		t.Errorf("lost %v", err)
	}
}

// Without an election two bindings at once ended the process.
func TestLeaseOfBindingsAtOnce(t *testing.T) {
	for range 100 {
		l, _ := testedLease(t)
		l.elections = prometheus.NewRegistry()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := l.lost(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}
