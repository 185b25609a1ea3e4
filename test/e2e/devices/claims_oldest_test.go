//go:build e2e && linux

package devices

import (
	"os"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/cluster"
)

// TestOldestClaims: on the kubelet, API server, controller-manager and scheduler of Kubernetes 1.34, claims get whole
// GPUs and HCAs. The driver publishes no pairs and no unhealthy GPU.
func TestOldestClaims(t *testing.T) {
	if os.Getenv("HEDDLE_VERSIONS") != "all" {
		t.Skip("builds Kubernetes 1.34, 12 CPU minutes: set HEDDLE_VERSIONS=all to run it")
	}
	older, err := cluster.Builder{Log: os.Stderr}.Older(t.Context(), "apiserver-1.34")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, options{name: "claims-oldest", config: claimedGPUs, held: true, older: older})
	if v := r.node(t).Status.NodeInfo.KubeletVersion; !strings.HasPrefix(v, "v1.34.") {
		t.Fatalf("the kubelet is %s", v)
	}
	if err := r.Apply(t.Context(), claimClasses()); err != nil {
		t.Fatal(err)
	}
	r.plugin.extra = []string{"--claims-dir", "/var/lib/kubelet/plugins/" + claims.Driver}
	if err := r.plugin.start(r.ctx(t)); err != nil {
		t.Fatal(err)
	}
	r.waitClaimable(t, 8)
	for name := range r.claimable(t) {
		if strings.HasPrefix(name, string(claims.Pair)+"-") {
			t.Errorf("device %s is published", name)
		}
	}
	r.claim(t, "both", exactly("gpus", "gpu.heddle.dev", 2), exactly("hca", "hca.heddle.dev", 1))
	r.run(t, r.claimant("both", "both"))
	gpus, hcas := given(t, r.report(t, "both", "app"))
	if len(gpus) != 2 || len(hcas) != 1 {
		t.Errorf("GPUs %v, HCAs %v", gpus, hcas)
	}
	r.change(t, func(m *machine.Machine) { m.GPUs[7].Health.State = machine.Lost })
	r.waitClaimable(t, 7)
	r.claim(t, "seven", exactly("gpus", "gpu.heddle.dev", 6))
	r.create(t, r.claimant("seven", "seven"))
	r.waitEvent(t, "seven", "FailedScheduling", "cannot allocate all claims")
	r.remove(t, "both")
	r.waitReady(t, "seven")
}
