package publish

import (
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

// fleet is a view of n nodes without labels.
func fleet(t *testing.T, n int) *snapshot.Snapshot {
	t.Helper()
	levels := []fabric.Level{{Kind: "rack", By: fabric.ByPath}}
	m, err := fabric.New(fabric.Config{Levels: levels})
	if err != nil {
		t.Fatal(err)
	}
	var draft snapshot.Draft
	for i := range n {
		name := fmt.Sprint("n", i)
		m.Put(fabric.Node{Name: name, Ready: true, Report: &v1alpha1.NodeTopologySpec{Path: []string{"rack-1"}}})
		draft.Set(name, snapshot.Detail{Node: &informers.Node{Name: name, UID: "u"}})
	}
	return snapshot.New(snapshot.Snapshot{Levels: levels, Tree: m.Snapshot(time.Unix(1, 0)), Nodes: draft.Table()})
}

func TestLabelsOfAFleetTakeTurns(t *testing.T) {
	scheme := runtime.NewScheme()
	metav1.AddMetaToScheme(scheme)
	client := fake.NewSimpleMetadataClient(scheme)
	var writes atomic.Int32
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		writes.Add(1)
		return true, &metav1.PartialObjectMetadata{}, nil
	})
	l := newLabels(New(Options{
		Objects: client, Exports: Exports{Labels: true}, Templates: []export.Template{export.DefaultTemplate},
		Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	}))
	v := fleet(t, 100)
	l.turn = -time.Second // Over before it begins.
	if err := l.sync(t.Context(), v, true); !onlyUnfinished(err) || writes.Load() != 0 {
		t.Errorf("after a turn of no time %d writes and %v", writes.Load(), err)
	}
	l.turn = time.Minute
	for range 2 { // The second has nothing to do.
		if err := l.sync(t.Context(), v, false); err != nil || writes.Load() != 100 {
			t.Errorf("after a whole turn %d writes and %v", writes.Load(), err)
		}
	}
}

func TestOnlyUnfinished(t *testing.T) {
	other := errors.New("other")
	for _, tt := range []struct {
		name string
		err  error
		want bool
	}{
		{"unfinished", errUnfinished, true},
		{"joined", errors.Join(nil, errors.Join(errUnfinished)), true},
		{"another", other, false},
		{"both", errors.Join(errUnfinished, other), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := onlyUnfinished(tt.err); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
