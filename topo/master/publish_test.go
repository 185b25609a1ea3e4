package master_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/publish"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// labels are a Node's.
func (c *cluster) labels(name string) map[string]string {
	var n corev1.Node
	c.Read("nodes", "", name, &n)
	return n.Labels
}

// label applies labels to a Node as another manager does.
func (c *cluster) label(t *testing.T, manager, name string, labels map[string]string) {
	t.Helper()
	raw, err := informers.CoreClient(c.config)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "labels": labels},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Patch("application/apply-patch+yaml").Resource("nodes").Name(name).
		Param("fieldManager", manager).Param("force", "true").Body(body).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	dragonfly = "heddle.dev/topology.dragonfly"
	switchbox = "heddle.dev/topology.switchbox"
	shape     = "heddle.dev/topology-shape"
)

func TestLabelsAreWrittenRepairedAndTakenBack(t *testing.T) {
	c := newCluster(t)
	c.sample()
	cpu := c.node("cpu1", true)
	c.label(t, "someone", "node-sample1", map[string]string{"theirs": "stays"})
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "four reports", reports(4))
	stop := c.lead(t, r, publish.Exports{Labels: export.LabelSets{Kinds: true}})
	want := map[string]string{
		"theirs": "stays", dragonfly: "dragonfly-sample1", switchbox: "switchbox-sample1", shape: "switchbox.dragonfly",
	}
	is := func(name string, want map[string]string) func() bool {
		return func() bool { return cmp.Equal(want, c.labels(name)) }
	}
	eventually(t, "labels", is("node-sample1", want))
	// Another client removes one: it is put back.
	var n corev1.Node
	c.Read("nodes", "", "node-sample1", &n)
	delete(n.Labels, dragonfly)
	c.Put("nodes", &n)
	eventually(t, "the label is put back", is("node-sample1", want))
	// The node moves.
	c.in("node-sample1", "switchbox-sample1", "dragonfly-sample2")
	want[dragonfly] = "dragonfly-sample2"
	eventually(t, "the new group", is("node-sample1", want))
	// It leaves its groups.
	c.in("node-sample1")
	eventually(t, "only the shape", is("node-sample1", map[string]string{"theirs": "stays", shape: "node"}))
	// A quiet leader writes nothing.
	r.until(t, "no label", func(v *snapshot.Snapshot) bool {
		d := v.Nodes["node-sample1"]
		return len(d.Node.Labels) == 1
	})
	eventually(t, "the last label", func() bool { return len(c.labels("cpu1")) > 0 })
	before := c.Requests("PATCH", "nodes")
	c.report("cpu1", cpu, v1alpha1.NodeTopologySpec{}, time.Now())
	r.until(t, "another report", reports(5))
	if after := c.Requests("PATCH", "nodes"); after != before {
		t.Errorf("%d writes for nothing", after-before)
	}
	stop()
	// The next leader writes no labels: what is heddle's is removed.
	c.lead(t, r, publish.Exports{})
	eventually(t, "no label of heddle", func() bool { return len(c.labels("node-sample2")) == 0 })
}

func TestAnotherManagersLabel(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprint("force ", force), func(t *testing.T) {
			c := newCluster(t)
			c.in("n1", "switchbox-1", "dragonfly-1")
			c.label(t, "topograph", "n1", map[string]string{dragonfly: "theirs"})
			r := c.replica(t, fabric.ModeSwitchbox)
			r.until(t, "the report", reports(1))
			c.lead(t, r, publish.Exports{Labels: export.LabelSets{Kinds: true}}, func(o *publish.Options) { o.Force = force })
			want := map[string]string{dragonfly: "theirs", switchbox: "switchbox-1", shape: "switchbox.dragonfly"}
			if force {
				want[dragonfly] = "dragonfly-1"
			}
			eventually(t, "labels", func() bool { return cmp.Equal(want, c.labels("n1")) })
		})
	}
}

func TestADeletedNodeIsNotMadeAgain(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	c.in("n2", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "two reports", reports(2))
	held := c.replica(t, fabric.ModeSwitchbox) // Its old snapshot goes to the publisher.
	v := held.until(t, "two reports", reports(2))
	c.Remove("nodes", "", "n1")
	held.until(t, "one node", nodes(1))
	c.lead(t, r, publish.Exports{Labels: export.LabelSets{Kinds: true}}, func(o *publish.Options) {
		o.Latest = snapshot.NewLatest()
		o.Latest.Set(v)
	})
	eventually(t, "the other label", func() bool { return c.labels("n2")[dragonfly] != "" })
	if diff := cmp.Diff([]string{"n2"}, c.Names("nodes")); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func (c *cluster) walks() map[string]string {
	out := map[string]string{}
	for _, name := range c.Names("nodetopologies") {
		var nt v1alpha1.NodeTopology
		c.Read("nodetopologies", "", name, &nt)
		for _, leaf := range nt.Status.Walk {
			out[leaf] = strings.TrimPrefix(out[leaf]+","+name, ",")
		}
	}
	return out
}

func TestOneWorkerDiscoversEachLeaf(t *testing.T) {
	c := newCluster(t)
	f := fabrics.New(fabrics.Plan{Sizes: []int{3, 3}, Rails: 2})
	beat := time.Now().Truncate(time.Second)
	for i := range f.Nodes {
		n := &f.Nodes[i]
		c.report(n.Name, c.node(n.Name, true), n.Spec, beat)
	}
	r := c.replica(t, fabric.ModeAuto)
	r.until(t, "six reports", reports(6))
	c.lead(t, r, publish.Exports{}, func(o *publish.Options) { o.CableDelay = time.Millisecond })
	one := func() bool {
		walks := c.walks()
		for _, owner := range walks {
			if strings.Contains(owner, ",") {
				return false
			}
		}
		return len(walks) == 4
	}
	eventually(t, "one worker for each of four leaves", one)
	var gone string
	for _, owner := range c.walks() {
		gone = owner
	}
	var nt v1alpha1.NodeTopology
	c.Read("nodetopologies", "", gone, &nt)
	if nt.Status.HeartbeatTime == nil || !nt.Status.HeartbeatTime.Time.Equal(beat) {
		t.Errorf("the heartbeat became %v", nt.Status.HeartbeatTime)
	}
	// That node goes: another walks its leaves.
	c.node(gone, false)
	eventually(t, "another walks", func() bool {
		for _, owner := range c.walks() {
			if owner == gone {
				return false
			}
		}
		return one()
	})
}

func TestAnExportWithoutItsCRD(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "the report", reports(1))
	registry := prometheus.NewRegistry()
	c.lead(t, r, publish.Exports{Labels: export.LabelSets{Kinds: true}, HyperNodes: true, Kueue: true},
		func(o *publish.Options) { o.Registry = registry })
	eventually(t, "labels", func() bool { return c.labels("n1")[dragonfly] != "" })
	eventually(t, "a metric that reports it", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, f := range families {
			if f.GetName() == "heddle_topology_export_absent" {
				for _, m := range f.GetMetric() {
					sum += m.GetGauge().GetValue()
				}
			}
		}
		return sum == 2
	})
}

func TestOnlyLeaseHolderWrites(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "the report", reports(1))
	holder := func() string {
		var lease struct {
			Spec struct{ HolderIdentity string }
		}
		c.Read("leases", "heddle-system", "heddle-topo-master", &lease)
		return lease.Spec.HolderIdentity
	}
	begin := func(identity string) (registry *prometheus.Registry, stop func()) {
		registry = prometheus.NewRegistry()
		p := c.publisher(t, r, publish.Exports{Labels: export.LabelSets{Kinds: true}}, func(o *publish.Options) { o.Registry = registry })
		return registry, run(t, func(ctx context.Context) error {
			return p.Run(ctx, c.config, publish.Lease{Namespace: "heddle-system", Name: "heddle-topo-master", Identity: identity})
		})
	}
	_, stopA := begin("a")
	eventually(t, "a leads", func() bool { return holder() == "a" && c.labels("n1")[dragonfly] != "" })
	b, stopB := begin("b")
	stopA()
	// One that is stopped before it reads that it has the lease keeps it.
	eventually(t, "b follows within seconds", func() bool {
		families, err := b.Gather()
		leads := 0.0
		for _, f := range families {
			if f.GetName() == "heddle_topology_leader" {
				leads = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return holder() == "b" && err == nil && leads == 1
	})
	stopB()
	eventually(t, "the lease is given back", func() bool { return holder() == "" })
}
