package claims

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	api "github.com/heddle-dev/heddle/api/claims"
)

// least is the least driver: it prepares nothing.
type least struct{ kubeletplugin.DRAPlugin }

func (least) PrepareResourceClaims(
	_ context.Context, all []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range all {
		results[c.UID] = kubeletplugin.PrepareResult{}
	}
	return results, nil
}

// share is a percent of a GPU for a claim.
func (r *rig) share(gpu int, id string) resourceapi.DeviceRequestAllocationResult {
	d, uid := r.device(api.GPU, gpu), types.UID(id)
	d.ShareID = &uid
	d.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		api.CapacityVCore: resource.MustParse("1"), api.CapacityVMemory: resource.MustParse("64Mi"),
	}
	return d
}

// BenchmarkPrepare measures NodePrepareResources as the kubelet calls it, of a share beside those of 100 claims, and
// the same call to the least driver of the same library, in turns. The API server is in memory.
func BenchmarkPrepare(b *testing.B) {
	r := newRig(b)
	for i := range 100 {
		if _, reason := r.prepare(r.allocated(fmt.Sprint("held-", i), r.share(i%8, fmt.Sprint("held-", i)))); reason != "" {
			b.Fatal(reason)
		}
	}
	dir := b.TempDir()
	for _, sub := range []string{"plugin", "registry"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o750); err != nil {
			b.Fatal(err)
		}
	}
	helper, err := kubeletplugin.Start(b.Context(), least{}, kubeletplugin.DriverName(api.Driver), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(r.client), kubeletplugin.PluginDataDirectoryPath(filepath.Join(dir, "plugin")),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "registry")), kubeletplugin.HealthService(false))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(helper.Stop)
	other := &rig{Driver: r.Driver, t: b, client: r.client, inv: r.inv, dra: dial(b, filepath.Join(dir, "plugin", "dra.sock"))}
	var ours, theirs []time.Duration
	n := 0
	for b.Loop() {
		n++
		c := r.allocated(fmt.Sprint("new-", n), r.share(n%8, fmt.Sprint("new-", n)))
		begin := time.Now()
		_, reason := r.prepare(c)
		ours = append(ours, time.Since(begin))
		if reason != "" {
			b.Fatal(reason)
		}
		begin = time.Now()
		other.prepare(c)
		theirs = append(theirs, time.Since(begin))
		if err := r.State.UnprepareClaim(string(c.UID)); err != nil {
			b.Fatal(err)
		}
		if err := r.client.ResourceV1().ResourceClaims("ml").Delete(b.Context(), c.Name, metav1.DeleteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	b.ReportMetric(ms(ours[len(ours)/2]), "p50-ms")
	b.ReportMetric(ms(ours[len(ours)*99/100]), "p99-ms")
	b.ReportMetric(float64(ours[len(ours)/2])/float64(theirs[len(theirs)/2]), "to-least")
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
		files := func() int {
			all, _ := filepath.Glob(filepath.Join(r.Dir, "..", "*", "*", "*"))
			specs, _ := filepath.Glob(filepath.Join(r.Dir, "..", "cdi", "*"))
			return len(all) + len(specs)
		}
		goroutines, before := runtime.NumGoroutine(), files()
		for n := range 1000 {
			turn(n + 1)
		}
		for range 100 { // Those of the last calls end soon.
			if runtime.NumGoroutine() <= goroutines {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		b.ReportMetric(float64(max(0, runtime.NumGoroutine()-goroutines)), "goroutines-more")
		b.ReportMetric(float64(files()-before), "files-more")
		b.ReportMetric(float64(len(r.State.Claims())), "claims-more")
	}
}
