package rdma_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/rdma"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

func TestCounters(t *testing.T) {
	tree := sysfstest.New(t)
	for name, text := range map[string]string{
		"mlx5_0/ports/1/link_layer": "InfiniBand", "mlx5_0/ports/1/counters/symbol_error": "7",
		"mlx5_0/ports/1/counters/link_downed": "2", "mlx5_0/ports/1/counters/link_error_recovery": "1",
		"mlx5_0/ports/1/counters/port_rcv_errors": "9",
		// Ethernet has no link_downed that counts; the network device has.
		"mlx5_1/ports/1/link_layer": "Ethernet", "mlx5_1/ports/1/counters/link_downed": "0",
		"mlx5_1/ports/1/gid_attrs/ndevs/0": "ens1", "mlx5_1/ports/1/hw_counters/rx_icrc_encapsulated": "3",
		"mlx5_1/ports/0x1/link_layer": "Ethernet",
		"mlx5_2/ports/1/link_layer":   "InfiniBand", "mlx5_2/ports/1/counters/symbol_error": "N/A (no PMA)",
	} {
		tree.Write("sys/class/infiniband/"+name, text)
	}
	tree.Write("sys/class/net/ens1/carrier_down_count", "4")
	c := rdma.NewCounters(tree.Sys())
	if _, ok := c.Of(rdma.PortID{HCA: "mlx5_0", Port: 1}); ok {
		t.Error("there are counters before the first scan")
	}
	c.Scan()
	want := map[string]v1alpha1.Counters{
		"mlx5_0": {SymbolErrors: 7, LinkDowns: 2, LinkErrorRecoveries: 1, ReceiveErrors: 9},
		"mlx5_1": {LinkDowns: 4, ICRCErrors: 3},
	}
	got := map[string]v1alpha1.Counters{}
	for _, hca := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"} {
		if e, ok := c.Of(rdma.PortID{HCA: hca, Port: 1}); ok {
			got[hca] = e
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
