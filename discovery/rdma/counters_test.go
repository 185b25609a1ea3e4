package rdma_test

import (
	"fmt"
	"strconv"
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
	tree.Write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", "100")
	tree.Write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "25")
	tree.Write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_wait", "6")
	tree.Write("sys/class/net/ens1/carrier_down_count", "4")
	tree.Write("sys/class/net/ens1/statistics/rx_crc_errors", "8")
	// A LAG has a cable for each slave.
	tree.Attributes("sys/class/infiniband/mlx5_bond_0/ports/1", map[string]string{
		"link_layer": "Ethernet", "gid_attrs/ndevs/0": "ens2", "counters/port_rcv_errors": "2",
	})
	nic := tree.PCI(sysfstest.Function{Path: "pci0000:10/0000:10:01.0", Class: "0x020000", Vendor: "0x15b3", Device: "0x101d"})
	for i, slave := range []string{"ens2", "ens3"} {
		tree.Net(nic, slave, "1", "up", i)
		tree.Write("sys/class/net/"+slave+"/statistics/rx_crc_errors", strconv.Itoa(20+i))
	}
	tree.Bond("bond0", "up", "ens2", "ens3")
	c := rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
	if _, ok := c.Last().Ports[rdma.PortID{HCA: "mlx5_0", Port: 1}]; ok {
		t.Error("there are counters before the first scan")
	}
	c.Scan()
	of := func(hca, netdev string) rdma.PortID { return rdma.PortID{HCA: hca, Port: 1, Netdev: netdev} }
	want := map[rdma.PortID]rdma.PortCounters{
		of("mlx5_0", ""): {
			Counters: v1alpha1.Counters{SymbolErrors: 7, LinkDowns: 2, LinkErrorRecoveries: 1, ReceiveErrors: 9},
			Bytes:    500, TransmitWaits: 6,
		},
		of("mlx5_1", ""):          {Counters: v1alpha1.Counters{LinkDowns: 4, ICRCErrors: 3, CRCErrors: 8}},
		of("mlx5_bond_0", "ens2"): {Counters: v1alpha1.Counters{ReceiveErrors: 2, CRCErrors: 20}},
		of("mlx5_bond_0", "ens3"): {Counters: v1alpha1.Counters{ReceiveErrors: 2, CRCErrors: 21}},
	}
	if diff := cmp.Diff(want, c.Last().Ports); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// BenchmarkCounters is one reading of the counters of nine ports.
func BenchmarkCounters(b *testing.B) {
	tree := sysfstest.New(b)
	sysfstest.DGXH100(tree)
	for i := range 9 {
		dir := fmt.Sprintf("sys/class/infiniband/mlx5_%d/ports/1/counters/", i)
		for _, name := range []string{"symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_rcv_data", "port_xmit_data", "port_xmit_wait"} {
			tree.Write(dir+name, "1")
		}
	}
	c := rdma.NewCounters(tree.Sys(), rdma.CountersEvery)
	for b.Loop() {
		if c.Scan(); len(c.Last().Ports) != 9 {
			b.Fatal(len(c.Last().Ports))
		}
	}
}
