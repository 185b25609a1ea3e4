package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// Counters are written when one that means harm has changed, of a node once an hour
// at most; a healthy port has none, and a restart writes nothing.
func TestCounters(t *testing.T) {
	tree := sysfstest.New(t)
	dir := "sys/class/infiniband/mlx5_0/ports/1/"
	tree.Write(dir+"link_layer", "InfiniBand")
	set := func(name string, n int) { tree.Write(dir+"counters/"+name, fmt.Sprint(n)) }
	for _, name := range []string{"symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_rcv_data"} {
		set(name, 0)
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.machine.HCAs[0].Ports[0].RateGbps = new(400.0)
		counters := rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
		pass := func() {
			t.Helper()
			counters.Scan()
			b.Counters = counters
			b.round(t)
		}
		writes := func(what string, want int) {
			t.Helper()
			if b.applies != want {
				t.Errorf("%s: %d writes, want %d", what, b.applies, want)
			}
		}
		published := func(want *v1alpha1.Counters) {
			t.Helper()
			got := b.object.Spec.Rails[0].Counters
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(v1alpha1.Counters{}, "Time")); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
		}
		pass()
		published(nil)
		set("port_rcv_data", 1<<40)
		pass()
		writes("traffic", 1)
		set("symbol_error", 5)
		pass()
		writes("the first error", 2)
		published(&v1alpha1.Counters{SymbolErrors: 5})
		for i := range 100 {
			set("symbol_error", 6+i)
			pass()
			<-time.After(30 * time.Second)
		}
		writes("errors without end for 50 minutes", 2)
		b.restart(t)
		pass()
		writes("a restart", 2)
		<-time.After(11 * time.Minute)
		set("link_downed", 2)
		pass()
		writes("an hour later", 3)
		published(&v1alpha1.Counters{SymbolErrors: 105, LinkDowns: 2, BitErrorRate: "6.8e-14"})
		<-time.After(2 * time.Hour)
		pass()
		writes("no further error", 3)
	})
}

func TestBitErrorRate(t *testing.T) {
	read := metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
	before := &v1alpha1.Counters{SymbolErrors: 10, Time: read}
	for name, c := range map[string]struct {
		before *v1alpha1.Counters
		errors int64
		gbps   int32
		after  time.Duration
		want   string
	}{
		// 144 errors in 3600 s of 400e9 bits.
		"an hour":            {before, 154, 400, time.Hour, "1.0e-13"},
		"no more":            {before, 10, 400, time.Hour, ""},
		"counted again":      {before, 3, 400, time.Hour, ""},
		"first reading":      {nil, 5, 400, time.Hour, ""},
		"unknown rate":       {before, 154, 0, time.Hour, ""},
		"clock was set back": {before, 154, 400, -time.Hour, ""},
	} {
		if got := bitErrorRate(c.before, c.errors, c.gbps, read.Add(c.after)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
