package worker_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/clustermanager"
	"github.com/heddle-dev/heddle/topo/worker/ib"
	"github.com/heddle-dev/heddle/topo/worker/lldp"
	"github.com/heddle-dev/heddle/topo/worker/static"
)

// node is a replayed H800 whose eight InfiniBand HCAs are those of a host in
// a simulated fabric.
type node struct {
	*worker.Worker
	sim     *ibsim.Sim
	tree    ibsim.FatTree
	machine *machine.Machine
	worker.Server
}

// simulatedHost is which host of the fabric the node is.
const simulatedHost = 5

func newNode(tb testing.TB) *node {
	tb.Helper()
	n := &node{
		tree:    ibsim.FatTree{Hosts: 8, Rails: 8, PerUnit: 4, Spines: 2, Uplinks: 2},
		machine: machines.Load(tb, "h800-8ib-bond"),
	}
	file, err := os.Create(filepath.Join(tb.TempDir(), "fat.net"))
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(n.tree.Write(file), file.Close()); err != nil {
		tb.Fatal(err)
	}
	n.sim = ibsim.Run(tb, file.Name())
	fabric := ib.New(func(umad string) (*ib.UMAD, error) {
		var number int
		if _, err := fmt.Sscanf(umad, "umad%d", &number); err != nil {
			return nil, err
		}
		return n.sim.Open(n.tree.HCA(simulatedHost, number))
	}, "", nil)
	log := slog.New(slog.DiscardHandler)
	frames := lldp.New(nil, log)
	tb.Cleanup(frames.Close)
	configs, err := config.NewWatcher("", config.Uncompiled{}, log)
	if err != nil {
		tb.Fatal(err)
	}
	n.Worker = worker.New(worker.Options{
		NodeName: "node005", Machines: n, Configs: configs,
		Sources:   []worker.Source{fabric, frames, static.New(log), clustermanager.New(clustermanager.Options{Log: log})},
		Publisher: n.Publisher(tb, "node005"), Interval: time.Minute,
		Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: log,
	})
	return n
}

func (n *node) Machine() *machine.Machine { return n.machine }
func (n *node) Changed() <-chan struct{}  { return nil }

// BenchmarkPass is a pass over eight InfiniBand ports of a simulated fabric:
// two SMPs each over a socket of its own, merged with what the other sources
// report, and compared with what is published. Processor time is the worker's,
// not the simulator's.
func BenchmarkPass(b *testing.B) {
	n := newNode(b)
	if err := n.Round(b.Context()); err != nil {
		b.Fatal(err)
	}
	writes, before := n.Writes(), processorTime(b)
	for b.Loop() {
		if err := n.Round(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1e3/float64(b.N), "cpu-ms/op")
	for _, r := range n.Spec().Rails {
		if r.Role == string(machine.RoleFabric) && r.Confidence != 100 {
			b.Errorf("%s: %+v", r.HCA, r)
		}
	}
	if n.Writes()-writes > b.N/1000+2 {
		b.Errorf("%d writes", n.Writes()-writes)
	}
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
