package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// bed is a worker whose surroundings a test plays.
type bed struct {
	*Worker
	*Server
	machine *machine.Machine
	changed chan struct{}

	// The server's mu guards what follows too, against the loop of a worker that
	// runs. leaf is what the source reports of port 1; empty is no answer.
	leaf string
	why  Absence
	// known are the uplinks in the last query, counted its reading of counters.
	known   []v1alpha1.Uplink
	counted time.Time
	// far are the counters of the switch's port, nil for none.
	far *v1alpha1.Counters
}

func (b *bed) Machine() *machine.Machine { return b.machine }
func (b *bed) Changed() <-chan struct{}  { return b.changed }
func (b *bed) Kind() v1alpha1.Source     { return v1alpha1.SourceIB }

// locked does something to the surroundings.
func (b *bed) locked(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *bed) Discover(_ context.Context, q Query) (r Report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range q.Ports {
		if b.leaf != "" {
			l := Link{PortKey: p.Key(), Switch: v1alpha1.Switch{ID: b.leaf}, Confidence: 100}
			if b.far != nil && !q.Counted.Equal(b.counted) {
				l.Counters = new(*b.far)
			}
			r.Links = append(r.Links, l)
		}
		r.Without(p.Key(), b.why)
	}
	b.known, b.counted = q.Uplinks, q.Counted
	for _, leaf := range q.Leaves {
		r.Uplinks = append(r.Uplinks, v1alpha1.Uplink{Leaf: leaf, Port: 33, Peer: "spine-1"})
	}
	return r
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{
		machine: &machine.Machine{Node: "n1", HCAs: []machine.HCA{{
			Name: "mlx5_0", PCI: "0000:18:00.0", NodeGUID: "g", Role: machine.RoleFabric,
			Ports: []machine.Port{{Number: 1, LinkLayer: machine.InfiniBand, State: machine.PortActive}},
		}}},
		Server: &Server{uid: "u1"}, changed: make(chan struct{}, 1), leaf: "leaf-a",
	}
	b.restart(t)
	return b
}

// restart is a new worker process beside the same API server.
func (b *bed) restart(t *testing.T) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	configs, err := config.NewWatcher("", config.Uncompiled{}, log)
	if err != nil {
		t.Fatal(err)
	}
	b.Worker = New(Options{
		NodeName: "n1", Machines: b, Configs: configs, Sources: []Source{b}, Publisher: b.Publisher(t, "n1"),
		Interval: 30 * time.Second, Metrics: NewMetrics(prometheus.NewRegistry()), Log: log,
	})
}

func (b *bed) round(t *testing.T) {
	t.Helper()
	if err := b.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) counts(t *testing.T, what string, applies, beats int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.applies != applies || b.beats != beats {
		t.Errorf("%s: %d writes and %d heartbeats, want %d and %d", what, b.applies, b.beats, applies, beats)
	}
}

func TestIdlePassesWriteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.round(t)
		b.counts(t, "first pass", 1, 1)
		for range 100 {
			b.round(t)
		}
		b.counts(t, "after 100 passes", 1, 1)

		b.restart(t)
		for range 100 {
			b.round(t)
		}
		b.counts(t, "after a restart and 100 passes", 1, 1)

		b.leaf = "leaf-b"
		b.round(t)
		b.counts(t, "after a moved cable", 2, 1)
		if got := b.object.Spec.Rails[0].Switch.ID; got != "leaf-b" {
			t.Errorf("published %s", got)
		}
	})
}

func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		last := time.Time{}
		for range 5 {
			var at time.Time
			for at.Equal(last) || at.IsZero() {
				<-time.After(time.Second)
				synctest.Wait()
				b.locked(func() { at = b.object.Status.HeartbeatTime.Time })
			}
			if gap := at.Sub(last); !last.IsZero() && (gap < v1alpha1.HeartbeatInterval-beatSpread-time.Second || gap > v1alpha1.HeartbeatInterval+2*time.Second) {
				t.Errorf("heartbeat after %s", gap)
			}
			last = at
		}
		b.counts(t, "5 heartbeats", 1, 5)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The creation of an object is its first heartbeat.
func TestANewObjectIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.created = metav1.Now()
		b.round(t)
		<-time.After(v1alpha1.HeartbeatInterval - beatSpread - time.Minute)
		b.round(t)
		b.counts(t, "before an hour", 1, 0)
		<-time.After(beatSpread + time.Minute)
		b.round(t)
		b.counts(t, "after an hour", 1, 1)
	})
}

func TestWhatOthersDoToTheObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.round(t)
		later := func() {
			<-time.After(readEvery + readSpread)
			b.round(t)
		}
		later()
		b.counts(t, "nothing", 1, 1)

		b.object.Spec.Rails[0].Switch.ID = "a lie"
		later() // A read shows it,
		b.round(t)
		b.counts(t, "another writer changed it", 2, 1)
		if got := b.object.Spec.Rails[0].Switch.ID; got != "leaf-a" {
			t.Errorf("published %s", got)
		}

		b.object = nil
		later()
		b.counts(t, "another writer deleted it", 3, 2)
		if b.object.Status.HeartbeatTime == nil {
			t.Error("the new object has no heartbeat")
		}

		b.object, b.uid = nil, "u2"
		later()
		if b.object.OwnerReferences[0].UID != "u2" {
			t.Errorf("belongs to %v", b.object.OwnerReferences)
		}
		b.object.OwnerReferences[0].UID = "u1"
		b.restart(t)
		b.round(t)
		if b.object.OwnerReferences[0].UID != "u2" {
			t.Errorf("after a restart it belongs to %v", b.object.OwnerReferences)
		}
	})
}

func TestDownAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.down = errors.New("away")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		if b.Metrics.Ready() == "" || b.Alive() != "" {
			t.Errorf("ready %q, alive %q", b.Metrics.Ready(), b.Alive())
		}
		b.locked(func() { b.down = nil })
		<-time.After(time.Minute)
		synctest.Wait()
		b.counts(t, "back", 1, 1)
		if b.Metrics.Ready() != "" {
			t.Error(b.Metrics.Ready())
		}
		// Away while a cable moves.
		b.locked(func() { b.down, b.leaf = errors.New("away"), "leaf-b" })
		b.changed <- struct{}{}
		<-time.After(time.Minute)
		b.locked(func() { b.down = nil })
		<-time.After(2 * time.Minute)
		stop()
		<-done
		if got := b.object.Spec.Rails[0].Switch.ID; got != "leaf-b" {
			t.Errorf("published %s", got)
		}
	})
}

// A rail is what it is since its cable was touched.
func TestRailsReportSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.why = Unavailable
		start := time.Now()
		port := &b.machine.HCAs[0].Ports[0]
		for _, step := range []struct {
			name string
			do   func()
			want int // Minutes from the start; -1 is unknown.
		}{
			{"the first look", func() {}, -1},
			{"the link goes down", func() { port.State = machine.PortDown; b.leaf = "" }, 1},
			{"it trains", func() { port.State = machine.PortInit }, 1},
			{"it is up, the switch is not known yet", func() { port.State = machine.PortActive; b.why = Unknown }, 3},
			{"the switch answers", func() { b.leaf = "leaf-a" }, 3},
			{"a new worker", func() { b.restart(t) }, 3},
			{"the cable goes elsewhere", func() { b.leaf = "leaf-b" }, 6},
			{"the switch is silent", func() { b.leaf = "" }, 7},
			{"another HCA", func() { b.machine.HCAs[0].NodeGUID = "h"; b.leaf = "leaf-b" }, 8},
			{"nothing happens", func() {}, 8},
		} {
			step.do()
			b.round(t)
			got := b.object.Spec.Rails[0].Since
			switch {
			case step.want < 0 && got != nil:
				t.Errorf("%s: since %s", step.name, got)
			case step.want >= 0 && (got == nil || got.Sub(start) != time.Duration(step.want)*time.Minute):
				t.Errorf("%s: since %v, want minute %d", step.name, got, step.want)
			}
			<-time.After(time.Minute)
		}
	})
}
