//go:build e2e

package page

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/metadata"

	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

// lead writes Events as the replica does that leads, without the time for a change
// to settle.
func (r *rig) lead(t *testing.T) {
	t.Helper()
	objects, err := metadata.NewForConfig(r.config)
	must(t, err)
	raw, err := informers.CoreClient(r.config)
	must(t, err)
	p := publish.New(publish.Options{
		Latest: r.latest, Objects: objects, Raw: raw, Exports: publish.Exports{Conditions: true},
		Debounce: time.Millisecond, CableDelay: time.Millisecond, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Lead(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// A cable that was found wrong, moved to another wrong switch, and put right has
// all of that beside it, from the Events that topo-master writes.
func TestHistoryOfACable(t *testing.T) {
	r := rails(t)
	r.lead(t)
	b := open(t, r.server.URL)
	past := func() []string {
		return value[[]string](b, `[...document.querySelectorAll('#detail .history .who')].map((e) => e.textContent.trim())`)
	}
	b.load("/?group=leaf-g0-rail0-plane0&kind=leaf&cable=node000005/3")
	b.until(`document.querySelectorAll('#detail .history li').length === 1`)
	port := &r.fabric.Nodes[5].Spec.Rails[3]
	port.Switch, port.SwitchPort = new(r.fabric.Leaf(1, 4, 0)), "63"
	r.report(5, time.Now())
	b.until(`document.querySelectorAll('#detail .history li').length === 2`)
	port.Switch, port.SwitchPort = new(r.fabric.Leaf(0, 3, 0)), "6"
	r.report(5, time.Now())
	b.until(`document.querySelectorAll('#detail .history li').length === 3`)
	want := []string{"recovered", "moved to another wrong switch", "found on a wrong switch"}
	if diff := cmp.Diff(want, past()); diff != "" {
		t.Errorf("the history (-want +got):\n%s", diff)
	}
	if got := value[string](b, `document.querySelector('.port[aria-current]').dataset.state`); got != "ok" {
		t.Errorf("the cable is drawn as %q", got)
	}
	b.shot("cables-light-history")
	b.load("/#node000007")
	b.until(`document.querySelectorAll('#detail .history li').length === 1`)
	if diff := cmp.Diff([]string{"dead"}, past()); diff != "" {
		t.Errorf("the history of a node (-want +got):\n%s", diff)
	}
	b.clean()
}
