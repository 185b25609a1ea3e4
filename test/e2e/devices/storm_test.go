//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// TestHundredPodsAtOnce creates a hundred pods at once; all ask for one HCA,
// eight of them for a GPU too. The kubelet asks for devices in any order and
// does not name the container, and PodResources admits 100 calls a second. Yet every
// container sees exactly what PodResources, the checkpoint entries and its CDI spec contain.
func TestHundredPodsAtOnce(t *testing.T) {
	const burst, withGPU = 100, 8
	r := newRig(t, options{name: "burst"})
	gpusOf := func(i int) int {
		if i%(burst/withGPU) == 0 && i/(burst/withGPU) < withGPU {
			return 1
		}
		return 0
	}
	r.storm(t, burst, func(i int) *corev1.Pod {
		return r.pod(fmt.Sprintf("burst-%03d", i), box{gpus: gpusOf(i), hcas: 1})
	})

	m, held, bindings, specs := r.machine(t), r.held(t), r.bindings(t), r.specs(t)
	load := map[string]int{}
	for i := range burst {
		pod := fmt.Sprintf("burst-%03d", i)
		k := key(pod, "app")
		s := r.has(t, pod, "app", gpusOf(i), 1)
		for _, hca := range s.HCAs {
			load[hca]++
		}
		if s.Env["NCCL_IB_HCA"] != "="+strings.Join(s.HCAs, ",")+":1" {
			t.Errorf("%s: NCCL_IB_HCA is %q for %v", k, s.Env["NCCL_IB_HCA"], s.HCAs)
		}
		if diff := cmp.Diff(s.GPUs, held[k][gpuResource]); diff != "" {
			t.Errorf("%s: GPUs (-seen +PodResources):\n%s", k, diff)
		}
		gpus, hcas := bound(m, bindings[k])
		if diff := cmp.Diff([][]string{s.GPUs, s.HCAs}, [][]string{gpus, hcas}); diff != "" {
			t.Errorf("%s: GPUs and HCAs (-seen +records):\n%s", k, diff)
		}
		for j := range bindings[k] {
			b := &bindings[k][j]
			if diff := cmp.Diff(held[k][b.Resource], b.IDs); diff != "" {
				t.Errorf("%s: IDs (-PodResources +record):\n%s", k, diff)
			}
			if err := fits(specs[b.spec()], b, s); err != nil {
				t.Errorf("%s: CDI spec of %s: %v", k, b.Resource, err)
			}
		}
	}
	// Tickets are spread evenly, 12 or 13 an HCA; a GPU's pod leaves its
	// ticket's HCA for the one beside the GPU, and there is one GPU beside each.
	t.Logf("pods by HCA: %v", load)
	if len(load) != 8 || slices.Max(slices.Collect(maps.Values(load))) > 14 {
		t.Errorf("100 pods on 8 HCAs are spread %v", load)
	}
	if problems := r.plugin.log.grep("level=ERROR"); len(problems) > 0 {
		t.Errorf("the plugin complains: %q", problems)
	}
}

// storm creates pods all at once and waits until all there are are ready.
func (r *rig) storm(t *testing.T, burst int, pod func(i int) *corev1.Pod) {
	t.Helper()
	begin := time.Now()
	var creators sync.WaitGroup
	failed := make([]error, burst)
	for i := range burst {
		creators.Go(func() {
			_, failed[i] = r.client.CoreV1().Pods(namespace).Create(t.Context(), pod(i), metav1.CreateOptions{})
		})
	}
	creators.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		list, err := r.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var waiting []string
		for i := range list.Items {
			if !ready(&list.Items[i]) {
				waiting = append(waiting, inShort(&list.Items[i]))
			}
		}
		if len(waiting) > 0 {
			return fmt.Sprintf("%d of %d pods wait, such as %q", len(waiting), len(list.Items), waiting[0])
		}
		return ""
	})
	t.Logf("%d pods created at once were ready after %.1f s", burst, time.Since(begin).Seconds())
}

// fits holds a record's CDI spec against what the container sees.
func fits(spec *specs.Spec, b *record, s *seen) error {
	if spec == nil {
		return errors.New("there is none")
	}
	if len(spec.Devices) != 1 || spec.Devices[0].Name != b.Device {
		return fmt.Errorf("it is of %+v", spec.Devices)
	}
	edits := spec.Devices[0].ContainerEdits
	var nodes, want []string
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if b.Resource == hcaResource {
		for _, h := range s.Devices.HCAs {
			want = append(want, h.Nodes...)
		}
		want = append(want, "/dev/infiniband/rdma_cm")
	}
	if diff := cmp.Diff(want, nodes); diff != "" {
		return fmt.Errorf("nodes (-seen +spec):\n%s", diff)
	}
	for _, word := range []string{
		cdi.EnvGPUs + "=" + strings.Join(s.GPUs, ","), cdi.EnvHCAs + "=" + strings.Join(s.HCAs, ","),
	} {
		if !slices.Contains(edits.Env, word) {
			return fmt.Errorf("%s is not in its environment %q", word, edits.Env)
		}
	}
	return nil
}
