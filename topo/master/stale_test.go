package master_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// Nodes, reports and pods come by watches of their own: the loss of one makes the
// map old, whatever the others receive. Heartbeats are checked by their own
// watch alone.
func TestOneSilentWatchMakesTheMapStale(t *testing.T) {
	for _, plural := range []string{"nodes", "nodetopologies", "pods"} {
		t.Run(plural, func(t *testing.T) {
			c := newCluster(t)
			c.in("n1", "switchbox-1", "dragonfly-1")
			clock := &aheadClock{}
			spec := v1alpha1.NodeTopologySpec{Path: []string{"switchbox-1", "dragonfly-1"}, PathSource: v1alpha1.SourceStatic}
			c.report("n1", c.node("n1", true), spec, clock.Now())
			r := c.replica(t, fabric.ModeSwitchbox, func(o *master.Options) { o.Clock = clock })
			r.until(t, "the report", reports(1))
			c.KindDown(plural, true)
			clock.ahead.Store(int64(10 * time.Minute))
			others := func(i int) {
				if plural != "nodes" {
					c.node("n1", i%2 == 0)
				}
				if plural != "nodetopologies" {
					var n corev1.Node
					c.Read("nodes", "", "n1", &n)
					c.report("n1", string(n.UID), spec, clock.Now())
				}
				if plural != "pods" {
					pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: strconv.Itoa(i)}}
					pod.Spec.NodeName = "n1"
					c.Put("pods", pod)
				}
			}
			i := 0
			eventually(t, "the map is stale", func() bool {
				others(i)
				i++
				v, _ := r.Latest().Get()
				return !v.StaleSince.IsZero()
			})
			if v, _ := r.Latest().Get(); clock.Now().Sub(v.StaleSince) < 9*time.Minute {
				t.Errorf("stale since %s", v.StaleSince)
			}
			// Past the time that workers have once their watch receives again.
			eventually(t, "the worker is not blamed", func() bool {
				clock.ahead.Add(int64(30 * time.Second))
				others(i)
				i++
				var n snapshot.Node
				if err := json.Unmarshal([]byte(get(t, r.url+"/v1/nodes/n1").body), &n); err != nil {
					t.Fatal(err)
				}
				return i > 30 && !slices.ContainsFunc(n.Reasons, func(reason fabric.Reason) bool {
					return reason.Kind == "stale" || reason.Kind == "clock"
				})
			})
			c.KindDown(plural, false)
			others(i)
			r.until(t, "contact", func(v *snapshot.Snapshot) bool { return v.StaleSince.IsZero() })
		})
	}
}

// Two replicas that see the same cluster give the same answers with the same tags, so a client
// may ask either.
func TestReplicasAnswerAlike(t *testing.T) {
	c := newCluster(t)
	c.sample()
	a, b := c.replica(t, fabric.ModeSwitchbox), c.replica(t, fabric.ModeSwitchbox)
	a.until(t, "four reports", reports(4))
	b.until(t, "four reports", reports(4))
	for _, path := range []string{"/node_group", "/v1/topology"} {
		one, other := get(t, a.url+path), get(t, b.url+path)
		if diff := cmp.Diff(one.body, other.body); diff != "" || one.header.Get("Etag") != other.header.Get("Etag") {
			t.Errorf("%s: tags %s and %s (-one +other):\n%s", path, one.header.Get("Etag"), other.header.Get("Etag"), diff)
		}
	}
}
