package fabric_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// fatTree is the fabric of the benchmarks: 8 rails, 32 nodes to a group, 5 %
// of the ports broken.
func fatTree(nodes int) *fabrics.Fabric {
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(nodes, 32), Rails: 8, Pod: 16})
	f.Damage(rand.New(rand.NewPCG(1, 1)), 0.05)
	return f
}

// BenchmarkFirstTree is from reports to the encoded answer.
func BenchmarkFirstTree(b *testing.B) {
	for _, nodes := range []int{4608, 16384, 100000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			f := fatTree(nodes)
			nodes := inputs(f)
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				m := newMap(fabric.Preset(fabric.ModeAuto, 0)...)
				m.Put(nodes...)
				if s := m.Snapshot(start); len(s.Child) == 0 {
					b.Fatal("no answer")
				}
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// processorTime is what all threads used, the collector's included.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkChange is from one node's change to the new answer with its tag.
func BenchmarkChange(b *testing.B) {
	for _, nodes := range []int{1024, 16384, 100000} {
		f := fatTree(nodes)
		m, known := mapOf(fabric.ModeAuto, f), inputs(f)
		m.Put(known...)
		m.Snapshot(start)
		rng := rand.New(rand.NewPCG(3, 3))
		pick := func() *fabrics.Node { return &f.Nodes[rng.IntN(len(f.Nodes))] }
		var gone *fabrics.Node // The node that is away, in the steps that alternate.
		back := func() bool {
			if gone == nil {
				return false
			}
			m.Put(input(gone))
			gone = nil
			return true
		}
		rails := func(rails func(spec *v1alpha1.NodeTopologySpec)) {
			gone = pick()
			spec := gone.Spec.DeepCopy()
			rails(spec)
			m.Put(fabric.Node{Name: gone.Name, Ready: true, Report: read(spec), Heartbeat: start})
		}
		for _, step := range []struct {
			name   string
			change func()
		}{
			{"beat", func() { m.Heartbeat(pick().Name, start.Add(time.Duration(rng.IntN(60))*time.Second)) }},
			{"status", func() {
				n := known[rng.IntN(len(known))]
				n.Ready = rng.IntN(2) == 0
				m.Put(n)
			}},
			{"cable", func() {
				if !back() {
					rails(func(s *v1alpha1.NodeTopologySpec) {
						s.Rails[rng.IntN(8)].Switch = pick().Spec.Rails[rng.IntN(8)].Switch
					})
				}
			}},
			{"moves", func() {
				if !back() {
					rails(func(s *v1alpha1.NodeTopologySpec) { s.Rails = pick().Spec.DeepCopy().Rails })
				}
			}},
			{"comes-goes", func() {
				if !back() {
					gone = pick()
					m.Remove(gone.Name)
				}
			}},
		} {
			b.Run(fmt.Sprintf("%s/%d", step.name, nodes), func(b *testing.B) {
				runtime.GC() // The steps before leave garbage: without this a second of few steps pays for it.
				b.ReportAllocs()
				took, used := make([]time.Duration, 0, 1<<16), processorTime(b)
				for b.Loop() {
					before := time.Now()
					step.change()
					if m.Snapshot(start).ETag() == "" {
						b.Fatal("no tag")
					}
					took = append(took, time.Since(before))
				}
				b.ReportMetric(float64(processorTime(b)-used)/float64(b.N)/1e6, "cpu-ms/op")
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
			})
			back()
		}
	}
}

// BenchmarkMemory is what a map of 16,384 nodes holds with the reports that it
// was made of, beside their strings.
func BenchmarkMemory(b *testing.B) {
	f := fatTree(16384)
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		m := mapOf(fabric.ModeAuto, f)
		s := m.Snapshot(start)
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(m)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
}
