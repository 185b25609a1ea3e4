package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// fleet is a snapshot of n nodes without labels.
func fleet(t *testing.T, n int) *snapshot.Snapshot {
	t.Helper()
	levels := []fabric.Level{{Kind: "rack", By: fabric.ByPath}}
	m := fabric.New(levels)
	nodes := map[string]*informers.NodeState{}
	for i := range n {
		name := fmt.Sprint("n", i)
		m.Put(fabric.Node{Name: name, Ready: true, Report: fabric.Read(&v1alpha1.NodeTopologySpec{Path: []string{"rack-1"}})})
		nodes[name] = &informers.NodeState{Name: name, Node: &informers.Node{Name: name, UID: "u"}}
	}
	return &snapshot.Snapshot{
		Levels: levels, Tree: m.Snapshot(time.Unix(1, 0)), Nodes: snapshot.Table[*informers.NodeState]{}.With(nodes),
	}
}

func TestLabelPassIsBounded(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddMetaToScheme(scheme)
	client := fake.NewSimpleMetadataClient(scheme)
	var writes atomic.Int32
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes.Add(1)
		return true, &metav1.PartialObjectMetadata{}, nil
	})
	l := newLabels(New(Options{
		Objects: client, Exports: Exports{Labels: export.LabelSets{Kinds: true}},
		Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}))
	v := fleet(t, maxWrites+9)
	if err := l.sync(t.Context(), v, true); !errors.Is(err, errUnfinished) || writes.Load() != maxWrites {
		t.Errorf("after one pass %d writes and %v", writes.Load(), err)
	}
	for range 2 { // The second has nothing to do.
		if err := l.sync(t.Context(), v, false); err != nil || writes.Load() != maxWrites+9 {
			t.Errorf("after all passes %d writes and %v", writes.Load(), err)
		}
	}
}

type failing struct{ err error }

func (f failing) sync(context.Context, *snapshot.Snapshot, bool) error { return f.err }

func TestSyncAll(t *testing.T) {
	other := errors.New("other")
	for _, tt := range []struct {
		name    string
		writers []writer
		pause   time.Duration
		err     error
	}{
		{"fine", []writer{failing{}}, refresh, nil},
		{"unfinished", []writer{failing{}, failing{errUnfinished}}, 0, nil},
		{"waiting", []writer{failing{errWaiting}, failing{}}, cableDelay, nil},
		{"waiting and unfinished", []writer{failing{errUnfinished}, failing{errWaiting}}, 0, nil},
		{"another", []writer{failing{other}, failing{}}, refresh, other},
		{"both", []writer{failing{errUnfinished}, failing{other}}, 0, other},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Publisher{options: Options{CableDelay: cableDelay}}
			pause, err := p.syncAll(t.Context(), tt.writers, nil, false)
			if pause != tt.pause || !errors.Is(err, tt.err) {
				t.Errorf("got %s, %v", pause, err)
			}
		})
	}
}
