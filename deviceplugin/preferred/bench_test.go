package preferred_test

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/preferred"
)

// BenchmarkEveryRequest asks for every size of every set of free GPUs.
func BenchmarkEveryRequest(b *testing.B) {
	for _, m := range []struct {
		name   string
		scores *preferred.Scores
		n      int
	}{
		{"8", preferred.New(nil, hypercube()), 8},
		{"16", preferred.New(nil, switched(plain(16, 8), 3)), 16},
	} {
		b.Run(m.name, func(b *testing.B) {
			b.ReportAllocs()
			var times []time.Duration
			for b.Loop() {
				times = times[:0]
				for free := uint64(1); free < 1<<m.n; free++ {
					for size := 1; size <= bits.OnesCount64(free); size++ {
						start := time.Now()
						m.scores.Choose(free, 0, size)
						times = append(times, time.Since(start))
					}
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)*99/100])/1e3, "p99-us")
			b.ReportMetric(float64(times[len(times)-1])/1e3, "max-us")
			b.ReportMetric(float64(len(times)), "requests")
		})
	}
}
