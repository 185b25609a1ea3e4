package main

import (
	"context"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// The cluster of the benchmarks is 4,608 nodes in 256 groups. benchGangs gangs
// that fill a group each come at once, a quarter of what there is room for.
const (
	benchGroups = 256
	benchSize   = 18
	benchGangs  = 64
	// benchRounds is how often each scheduler runs.
	benchRounds = 5
	// published has the form of what a node of eight equal GPUs publishes while none is in use.
	published = `{"1":{"score":0,"loss":478000,"hcas":1},"2":{"score":478000,"loss":896250,"hcas":2},` +
		`"3":{"score":1434000,"loss":1254750,"hcas":3},"4":{"score":2868000,"loss":1553500,"hcas":4},` +
		`"5":{"score":4780000,"loss":1792500,"hcas":5},"6":{"score":7170000,"loss":1971750,"hcas":6},` +
		`"7":{"score":10038000,"loss":2091250,"hcas":7},"8":{"score":13384000,"loss":0,"hcas":8}}`
)

// bench is the cluster, its topology tree, and the schedulers that are compared.
type bench struct {
	*testing.B
	nodes      []*corev1.Node
	contenders []contender
	// gangs come at once, of pods that make adds.
	gangs int
	make  func(w *cluster, name string, gpus int, labels map[string]string)
}

// contender is a scheduler; rounds are the results of its runs.
type contender struct {
	name   string
	start  func() *cluster
	rounds []round
}

// round is how many pods had a node per second, from the creation of the first
// to the binding of the last, how much processor time each took, in
// milliseconds, the test's own included, and how many groups of the tree a gang
// is in.
type round struct{ pods, cpu, groups float64 }

func newBench(b *testing.B) *bench {
	b.Helper()
	return newBenchOf(b, benchGroups)
}

// newBenchOf is for this many groups of nodes.
func newBenchOf(b *testing.B, groups int) *bench {
	b.Helper()
	watch.DefaultChanSize = 100000 // The tracker panics if a watcher is slower than the writer.
	// As the program logs, but to nowhere: its lines would be among the results. The framework asks
	// for each plugin on each node whether it is to log, which costs most without contextual logging.
	klog.SetLoggerWithOptions(
		textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.Discard))), klog.ContextualLogger(true))
	x := &bench{B: b, gangs: benchGangs}
	x.make = func(w *cluster, name string, gpus int, labels map[string]string) { w.add(pod(name, gpus, labels)) }
	var names []string
	for g := range groups {
		for n := range benchSize {
			names = append(names, fmt.Sprintf("n%03d-%02d", g, n))
			made := node(names[len(names)-1], 8)
			made.Annotations = map[string]string{wellknown.GPUTopology: published}
			x.nodes = append(x.nodes, made)
		}
	}
	m := &master{}
	m.set(leaves(benchSize, names...))
	server := httptest.NewServer(m)
	b.Cleanup(server.Close)
	x.contenders = []contender{
		{name: "heddle", start: func() *cluster {
			w := start(b, fmt.Sprintf(`{"topoMaster": %q, "interval": "1s"}`, server.URL+"/node_group"), x.nodes...)
			m.await()
			return w
		}},
		{name: "plain", start: func() *cluster { return startAs(b, stock(b, ""), x.nodes...) }},
	}
	return x
}

// stock is kube-scheduler as it comes, but for what is added to its profile.
func stock(b *testing.B, more string) *config.KubeSchedulerConfiguration {
	b.Helper()
	return decoded(b, []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: heddle-scheduler
`+more))
}

// run runs each scheduler benchRounds times, in alternation, on an empty cluster
// each time and with the same pods, and reports medians. Which is the first alternates
// too. Ratios are of runs that followed each other. With -cpuprofile, `go tool pprof
// -tagfocus scheduler=heddle` shows one of them, but for the collection of garbage.
func (x *bench) run(gpus int, labels func(gang int) map[string]string) {
	var order []int
	for i := range x.contenders {
		order = append(order, i)
	}
	for range x.N {
		for range benchRounds {
			slices.Reverse(order)
			for _, i := range order {
				r := &x.contenders[i]
				pprof.Do(context.Background(), pprof.Labels("scheduler", r.name), func(context.Context) {
					r.rounds = append(r.rounds, x.measure(r.start(), gpus, labels))
				})
			}
		}
	}
	for i := range x.contenders {
		r := &x.contenders[i]
		var pods, cpu, groups, ratios, less []float64
		for at, t := range r.rounds {
			pods, cpu, groups = append(pods, t.pods), append(cpu, t.cpu), append(groups, t.groups)
			ratios = append(ratios, x.contenders[0].rounds[at].pods/t.pods)
			less = append(less, t.cpu/x.contenders[0].rounds[at].cpu)
		}
		x.ReportMetric(median(pods), r.name+"-pods/s")
		x.ReportMetric(median(cpu), r.name+"-cpu-ms/pod")
		x.ReportMetric(median(groups), r.name+"-groups/gang")
		if i > 0 {
			x.ReportMetric(median(ratios), "to-"+r.name)
			x.ReportMetric(median(less), "cpu-to-"+r.name)
		}
		x.Logf("%s: %.0f pods/s, %.2f ms of processor time", r.name, pods, cpu)
	}
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// measure runs one gang that warms everything up, then all others.
func (x *bench) measure(w *cluster, gpus int, labels func(gang int) map[string]string) round {
	bindings := make(chan struct{}, (1+x.gangs)*benchSize)
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, kuberuntime.Object, error) {
		if action.GetSubresource() == "binding" {
			bindings <- struct{}{}
		}
		return false, nil, nil
	})
	run := func(from, to int) (took, cpu time.Duration) {
		begin, before := time.Now(), processorTime(x)
		for g := from; g < to; g++ {
			for i := range benchSize {
				x.make(w, fmt.Sprintf("g%d-%d", g, i), gpus, labels(g))
			}
		}
		late := time.After(5 * time.Minute)
		for range (to - from) * benchSize {
			select {
			case <-bindings:
			case <-late:
				x.Fatal("not all pods have a node after 5 minutes")
			}
		}
		return time.Since(begin), processorTime(x) - before
	}
	run(0, 1)
	runtime.GC()
	took, cpu := run(1, 1+x.gangs)
	pods := w.until("all bound", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "g") == (1+x.gangs)*benchSize
	})
	w.stop()
	in := map[string]bool{}
	for _, p := range pods {
		gang, _, _ := strings.Cut(p.Name, "-")
		group, _, _ := strings.Cut(p.Spec.NodeName, "-")
		in[gang+group] = true
	}
	measured := float64(x.gangs * benchSize)
	return round{measured / took.Seconds(), cpu.Seconds() * 1e3 / measured, float64(len(in)) / float64(1+x.gangs)}
}

// processorTime is what this process had so far.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// BenchmarkGangs is what a topology tree costs: gangs of 18 that fill a group each, to
// kube-scheduler that knows neither gangs nor groups.
func BenchmarkGangs(b *testing.B) {
	x := newBench(b)
	x.contenders = append(x.contenders, contender{name: "batching", start: func() *cluster {
		// Its default spreading forbids it to take one pod's nodes for the next
		// that is equal.
		return startAs(b, stock(b, "  pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List}}]"), x.nodes...)
	}})
	x.run(8, func(gang int) map[string]string { return gangLabels(fmt.Sprintf("g%d", gang), benchSize) })
}

// BenchmarkOtherPods is what the plugin costs pods of no gang: with all GPUs of a node and with
// some, for which it marks nodes by their topology, and without, which are none of its business.
func BenchmarkOtherPods(b *testing.B) {
	for _, tt := range []struct {
		name string
		gpus int
	}{{"gpus", 8}, {"some", 2}, {"none", 0}} {
		b.Run(tt.name, func(b *testing.B) {
			newBench(b).run(tt.gpus, func(int) map[string]string { return nil })
		})
	}
}
