package devicestate

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
)

// BenchmarkInject measures what the container runtime does with our specs when
// it creates a container with a GPU and two HCAs, with the library that it does
// that with: it reads the whole CDI directory again after every change, and
// edits the container's OCI spec. The specs beside the container's own two are
// those of 0, 100 and 200 other pods, alternating.
func BenchmarkInject(b *testing.B) {
	others := []int{0, 100, 200}
	caches, names, times := make([]*cdilib.Cache, 3), make([][]string, 3), make([][]time.Duration, 3)
	for i, n := range others {
		r, own := crowded(b, n)
		cache, err := cdilib.NewCache(cdilib.WithSpecDirs(r.options.CDIDir), cdilib.WithAutoRefresh(false))
		if err != nil {
			b.Fatal(err)
		}
		caches[i], names[i] = cache, own
	}
	for b.Loop() {
		for i, cache := range caches {
			start := time.Now()
			if err := cache.Refresh(); err != nil {
				b.Fatal(err)
			}
			spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
			if _, err := cache.InjectDevices(spec, names[i]...); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	median := func(i int) float64 {
		slices.Sort(times[i])
		return times[i][len(times[i])/2].Seconds() * 1000
	}
	for i, n := range others {
		b.ReportMetric(median(i), fmt.Sprintf("p50-ms-%d", n))
		b.ReportMetric(times[i][len(times[i])*99/100].Seconds()*1000, fmt.Sprintf("p99-ms-%d", n))
		b.ReportMetric(median(i)/median(0), fmt.Sprintf("ratio-%d", n))
	}
}

// crowded is a node with the specs of some pods and of one more, whose CDI
// names it returns. The directory is on a tmpfs, as /var/run/cdi.
func crowded(b *testing.B, others int) (r *rig, names []string) {
	b.Helper()
	r = newRig(b)
	if dir, err := os.MkdirTemp("/dev/shm", "cdi"); err == nil { //nolint:usetesting // TempDir is on a disk.
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
		r.options.CDIDir = dir
		r.restart()
	}
	r.makeNodes()
	fabric := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"}
	for i := range others {
		name := fmt.Sprintf("pod-%d", i)
		r.spec(name, corev1.Container{Name: "main"})
		want := asks{hcas: r.deviceIDs(
			fmt.Sprintf("%s/%d", fabric[i%8], i/8), fmt.Sprintf("%s/%d", fabric[(i+3)%8], 32+i/8))}
		r.allocate(pod(name), "main", want)
		r.start(want)
	}
	r.spec("own", corev1.Container{Name: "main"})
	want := asks{gpus: r.gpuIDs(0), hcas: r.deviceIDs("mlx5_0/61", "mlx5_3/61")}
	names = slices.Sorted(maps.Values(r.allocate(pod("own"), "main", want)))
	r.start(want)
	if specs, err := os.ReadDir(r.options.CDIDir); err != nil || len(specs) != others+2 {
		b.Fatalf("%d specs, want those of %d pods and two more: %v", len(specs), others, err)
	}
	return r, names
}
