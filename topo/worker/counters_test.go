package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
		counters := rdma.NewCounters(tree.Sys())
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
		published(&v1alpha1.Counters{SymbolErrors: 105, LinkDowns: 2})
		<-time.After(2 * time.Hour)
		pass()
		writes("no further error", 3)
	})
}
