package claims

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/heddle-dev/heddle/api/claims"
)

// share is a percent of a GPU for a claim.
func (r *rig) share(gpu int, id string) resourceapi.DeviceRequestAllocationResult {
	d, uid := r.device(api.GPU, gpu), types.UID(id)
	d.ShareID = &uid
	d.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		api.CapacityVCore: resource.MustParse("1"), api.CapacityVMemory: resource.MustParse("64Mi"),
	}
	return d
}

// BenchmarkClaimsLeaveNothing lets 1,000 claims come and go, and counts what is left.
func BenchmarkClaimsLeaveNothing(b *testing.B) {
	for b.Loop() {
		r := newRig(b)
		turn := func(n int) {
			c := r.allocated(fmt.Sprint("c-", n), r.share(n%8, fmt.Sprint("c-", n)))
			if _, reason := r.prepare(c); reason != "" {
				b.Fatal(reason)
			}
			if err := r.State.UnprepareClaim(string(c.UID)); err != nil {
				b.Fatal(err)
			}
		}
		turn(0)
		r.wait(0) // The driver has published: all its goroutines run.
		files := func() int {
			all, _ := filepath.Glob(filepath.Join(r.Dir, "..", "*", "*", "*"))
			specs, _ := filepath.Glob(filepath.Join(r.Dir, "..", "cdi", "*"))
			return len(all) + len(specs)
		}
		goroutines, before := runtime.NumGoroutine(), files()
		for n := range 1000 {
			turn(n + 1)
		}
		// Those of the last calls end soon.
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
			<-time.After(10 * time.Millisecond)
		}
		b.ReportMetric(float64(max(0, runtime.NumGoroutine()-goroutines)), "goroutines-more")
		b.ReportMetric(float64(files()-before), "files-more")
		b.ReportMetric(float64(len(r.State.Claims())), "claims-more")
	}
}
