//go:build e2e && linux

package vm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

// A healthy link of the bed is so slow that it decides, and not the emulation.
const (
	mbits   = 10
	healthy = "rate 10mbit delay 10ms"
)

// shape gives the link of a port a rate, a delay and a loss, as it sends.
func (b *bed) shape(ctx context.Context, t *testing.T, node, rail int, netem string) {
	t.Helper()
	p := &b.ports[port(node, rail)]
	args := strings.Fields("/sbin/tc qdisc replace dev " + p.Netdev + " root netem limit 10000 " + netem)
	if out, err := b.on.Run(ctx, p.Node, args); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// all gives all links the same.
func (b *bed) all(ctx context.Context, t *testing.T, netem string) {
	t.Helper()
	for i := range b.ports {
		b.shape(ctx, t, i/rails, i%rails, netem)
	}
}

// flow measures one flow.
func (b *bed) flow(ctx context.Context, t *testing.T, from, to int) fabrictest.Result {
	t.Helper()
	r := b.on.Round(ctx, b.ports, []fabrictest.Flow{{From: from, To: to}})[0]
	t.Logf("%s to %s: %.4f Gb/s, %.0f µs %s", &b.ports[from], &b.ports[to], r.Gbps, r.Latency, r.Failure)
	return r
}

// faults runs the test of pairs, and returns what is slow at which place.
func (b *bed) faults(ctx context.Context, t *testing.T) (faults []string) {
	t.Helper()
	test := fabrictest.NewTest(b.ports, 1)
	for flows := test.Next(); flows != nil; flows = test.Next() {
		results := b.on.Round(ctx, b.ports, flows)
		for _, r := range results {
			t.Logf("%s to %s: %.4f Gb/s, %.0f µs %s", &b.ports[r.From], &b.ports[r.To], r.Gbps, r.Latency, r.Failure)
		}
		test.Add(results)
	}
	found, unexplained := test.Faults()
	for _, f := range unexplained {
		faults = append(faults, fmt.Sprintf("unexplained: %s to %s", &b.ports[f.From], &b.ports[f.To]))
	}
	for _, f := range found {
		for _, where := range f.Where {
			faults = append(faults, fmt.Sprintf("%s: %s of %s", f.What, f.Kind, where))
		}
	}
	slices.Sort(faults)
	return faults
}

// TestFabricInGuests runs the measurements of `heddle fabric test` over soft RoCE between guests.
func TestFabricInGuests(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	b := startBed(ctx, t)
	t.Run("pair", func(t *testing.T) {
		free := b.flow(ctx, t, port(0, 0), port(1, 0))
		b.shape(ctx, t, 0, 0, "rate 1mbit")
		slow := b.flow(ctx, t, port(0, 0), port(1, 0))
		b.shape(ctx, t, 0, 0, "delay 200ms")
		late := b.flow(ctx, t, port(0, 0), port(1, 0))
		if free.Failure != "" || slow.Gbps <= 0 || slow.Gbps > free.Gbps/3 || late.Latency < 3*free.Latency {
			t.Errorf("free %+v, slow %+v, late %+v", free, slow, late)
		}
	})
	t.Run("healthy", func(t *testing.T) {
		b.all(ctx, t, healthy)
		if diff := cmp.Diff([]string(nil), b.faults(ctx, t)); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
	t.Run("faults", func(t *testing.T) {
		b.all(ctx, t, healthy)
		b.shape(ctx, t, 1, 0, "rate 2mbit delay 10ms")
		b.shape(ctx, t, 2, 1, "loss 100%")
		b.shape(ctx, t, 3, 0, "rate 10mbit delay 100ms")
		want := []string{
			"bandwidth: cable of node-1 rxe0 port 1", "failure: cable of node-2 rxe1 port 1",
			"latency: cable of node-3 rxe0 port 1",
		}
		if diff := cmp.Diff(want, b.faults(ctx, t)); diff != "" {
			t.Errorf("faults (-want +got):\n%s", diff)
		}
	})
	t.Run("collective", func(t *testing.T) {
		b.all(ctx, t, "rate 20mbit")
		failing := &measure.Collective{Launcher: measure.MPI, Args: []string{"false"}, Ranks: 1}
		_, err := b.on.Collective(ctx, failing, []string{nodeName(0), nodeName(1)})
		if t.Log(err); err == nil || errors.Is(err, measure.ErrGone) {
			t.Errorf("a program that fails: %v", err)
		}
		var names []string
		for node := range nodes {
			names = append(names, nodeName(node))
		}
		run := func(names []string, rail *int32) (float64, error) { return b.collective(ctx, t, names, rail) }
		whole, err := run(names, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.shape(ctx, t, 2, 1, "rate 1mbit")
		got, err := fabrictest.Bisect(names, []int32{0, 1}, whole/2, run)
		if err != nil || !slices.Equal(got.Nodes, names[2:3]) || got.Rail == nil || *got.Rail != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// collective runs the MPI program with a rank on each of some nodes, by one rail or all.
func (b *bed) collective(ctx context.Context, t *testing.T, names []string, rail *int32) (float64, error) {
	t.Helper()
	netdevs := "eth0,eth1"
	if rail != nil {
		netdevs = fmt.Sprintf("eth%d", *rail)
	}
	busbw, err := b.on.Collective(ctx, &measure.Collective{
		Launcher: measure.MPI, Ranks: 1,
		Args: []string{
			"env", "OMPI_MCA_btl_tcp_if_include=" + netdevs,
			"all_reduce_perf", "-b", "65536", "-e", "262144", "-f", "4", "-n", "2", "-w", "1",
		},
	}, names)
	t.Logf("%v by %s: %.4f GB/s %v", names, netdevs, busbw, err)
	return busbw, err
}
