//go:build e2e && linux

package devices

import (
	"os"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

// oldestKubelet is the minor version of the oldest kubelet that heddle is run with.
const oldestKubelet = "1.31"

// TestOldestKubelet: the device plugin serves GPUs, HCAs and shares to the oldest
// kubelet. It registers again with one that comes back, containers keep what they
// have, and shares are bound late there too. The API server is the newest one, with
// which Kubernetes does not support so old a kubelet; the device plugin only reads
// pods and its Node there.
func TestOldestKubelet(t *testing.T) {
	if os.Getenv("HEDDLE_VERSIONS") != "all" {
		t.Skip("builds a kubelet of its own, 5 CPU minutes: set HEDDLE_VERSIONS=all to run it")
	}
	kubelet, err := cluster.Builder{Log: os.Stderr}.Older(t.Context(), "kubelet-"+oldestKubelet)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, options{name: "oldest", older: kubelet})
	if v := r.node(t).Status.NodeInfo.KubeletVersion; !strings.HasPrefix(v, "v"+oldestKubelet+".") {
		t.Fatalf("the kubelet is %s", v)
	}
	r.run(t, r.pod("whole", box{gpus: 4, hcas: 4}))
	whole := r.has(t, "whole", "app", 4, 4)

	r.stopKubelet(t)
	mark := r.plugin.log.mark()
	r.startKubelet(t)
	r.waitRegistrations(t, mark)
	r.waitOffered(t, gpuResource, 8)
	r.run(t, r.pod("rest", box{gpus: 4, hcas: 4}))
	for _, gpu := range r.has(t, "rest", "app", 4, 4).GPUs {
		if strings.Contains(strings.Join(whole.GPUs, " "), gpu) {
			t.Errorf("both pods have %s", gpu)
		}
	}
	r.has(t, "whole", "app", 4, 4)
	r.remove(t, "whole", "rest")

	// The kubelet of 1.31 counts what the pod that it admitted last held, until it admits
	// another (pendingAdmissionPod); until then these GPUs do not change their mode.
	r.run(t, r.pod("next", box{}))
	r.configure(t, sharedGPUs)
	r.waitShares(t, allSlots, allCores, allGiB)
	r.run(t, r.pod("first", box{more: share(30, 4)}))
	r.run(t, r.pod("second", box{more: share(20, 8)}))
	first := r.hasShares(t, "first", "app", slice(30, 4))
	second := r.hasShares(t, "second", "app", slice(20, 8))
	if first[0].UUID != second[0].UUID {
		t.Errorf("shares are %v and %v: binpack puts them on one GPU", first, second)
	}
	r.killContainer(t, status(r.getPod(t, "first"), "app").ContainerID)
	r.waitRestart(t, "first", 1)
	r.hasShares(t, "first", "app", first...)
}
