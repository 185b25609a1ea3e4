//go:build e2e && linux

package devices

import (
	"os"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

// TestCRIO: GPUs, HCAs and shares with preload on a node whose container runtime is CRI-O. It is
// one from before its pull request 9292: the environment and the mounts of pods win over those
// of CDI there, and so a container that would have more than its share is not created.
func TestCRIO(t *testing.T) {
	if os.Getenv("HEDDLE_VERSIONS") != "all" {
		t.Skip("builds a CRI-O of its own, 7 CPU minutes: set HEDDLE_VERSIONS=all to run it")
	}
	if missing := cluster.CRIOMissing(); len(missing) > 0 {
		t.Skipf("this machine lacks what CRI-O needs: %v", missing)
	}
	programs, err := cluster.Builder{Log: os.Stderr}.CRIO(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, options{name: "crio", crio: programs})
	if v := r.node(t).Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, "cri-o://") {
		t.Fatalf("the container runtime is %s", v)
	}
	r.run(t, r.pod("whole", box{gpus: 1, hcas: 1}))
	r.has(t, "whole", "app", 1, 1)
	r.remove(t, "whole")

	r.sharesOnCRIO(t)
	r.count(t)
}

// sharesOnCRIO: limits of preload are in the container. What would lift them by the pod's environment
// or mounts keeps it from being created.
func (r *rig) sharesOnCRIO(t *testing.T) {
	t.Helper()
	r.configure(t, sharedGPUs)
	r.waitShares(t, allSlots, allCores, allGiB)
	r.preloads(t)
	r.run(t, r.pod("share", box{more: share(30, 4), env: map[string]string{"CUDA_VISIBLE_DEVICES": "0"}}))
	r.hasShares(t, "share", "app", slice(30, 4))
	own := map[string]string{"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT_0": "30", "CUDA_REDIRECT": ""}
	owns(t, "share", r.sees(t, "share", "app").Env, own)
	owns(t, "kubectl exec in share", r.ask(t, "share", "app").Env, own)

	r.configMap(t, "words", map[string]string{"CUDA_REDIRECT": "/host/gpus/other.so"})
	r.create(t,
		r.pod("more", box{more: share(30, 4), env: map[string]string{"CUDA_DEVICE_SM_LIMIT_0": "100"}}),
		r.pod("from", box{more: share(30, 4), envFrom: "words"}))
	r.waitWaiting(t, "more", "sets CUDA_DEVICE_SM_LIMIT_0, which the limits")
	r.waitWaiting(t, "from", "sets CUDA_REDIRECT, which the limits")
	r.remove(t, "more", "from")

	hides := r.hidesNoLimit(t)
	replaced := hides("replaced", "/etc/ld.so.preload")
	r.create(t, replaced)
	r.waitWaiting(t, replaced.Name, "hides /etc/ld.so.preload")
	r.remove(t, replaced.Name)
}
