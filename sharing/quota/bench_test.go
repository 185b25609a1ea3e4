package quota_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/sharing/quota"
)

// BenchmarkPlace places one request among 16 GPUs of 16 consumers each.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1, 4, 12} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			all := busy()
			list, out := requests(all, n), make([]int, 0, quota.MaxGPUs)
			took := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				start := time.Now()
				out, _ = quota.Place(all, &list[i%len(list)], binpack, out)
				if len(took) < cap(took) {
					took = append(took, time.Since(start))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
		})
	}
}
