//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
)

// The soak's last GPU is for claims, and the others are shared; the shared GPUs offer soakSlots, soakCores
// and soakGiB.
const (
	oneClaimed = "claims: {gpus: [\"7\"]}\n"
	allClaimed = "claims: {gpus: [\"0\", \"1\", \"2\", \"3\", \"4\", \"5\", \"6\", \"7\"]}\n"

	soakSlots, soakCores, soakGiB = allSlots / 8 * 7, allCores / 8 * 7, allGiB / 8 * 7
)

// claimAnchor is the pod with a claim that stays.
const claimAnchor = "anchor-claim"

// shareTemplate makes claims for a share of a GPU.
const shareTemplate = `---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: share, namespace: ` + namespace + `}
spec:
  spec:
    devices:
      requests:
      - name: share
        exactly: {deviceClassName: sgpu.heddle.dev, capacity: {requests: {vcore: "10", vmemory: 6Gi}}}
`

// sharer returns a pod with a share by a claim of its own.
func (s *soak) sharer(name string) *corev1.Pod {
	p := s.claimant(name, "share")
	p.Spec.ResourceClaims[0].ResourceClaimName = nil
	p.Spec.ResourceClaims[0].ResourceClaimTemplateName = new("share")
	return p
}

// claimsAndBack hands the node to claims while pods with shares come and go: GPUs follow as they are free. Pods with
// claims run beside those with shares, and something fails meanwhile. Then the GPUs go back, and nothing is left of
// the claims.
func claimsAndBack(s *soak, t *testing.T, random *rand.Rand) {
	text, err := os.ReadFile(filepath.Join(s.dir, "config", "cluster-config"))
	if err != nil {
		t.Fatal(err)
	}
	s.configure(t, strings.Replace(string(text), oneClaimed, allClaimed, 1))
	eventually(t, func() string {
		n := 0
		for name, d := range s.claimable(t) {
			if strings.HasPrefix(name, string(claims.GPU)+"-") && len(d.Taints) == 0 {
				n++
			}
		}
		if n < 3 { // One has shares by claims.
			return fmt.Sprintf("%d GPUs are published without taints", n)
		}
		return ""
	})
	pods := []string{fmt.Sprint("claims-", s.pods.Add(1)), fmt.Sprint("claims-", s.pods.Add(1))}
	t.Cleanup(func() { // Of a step that failed.
		for _, name := range pods {
			_ = s.client.CoreV1().Pods(namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		}
	})
	for _, name := range pods {
		s.claim(t, name, exactly("gpu", "gpu.heddle.dev", 1))
		s.create(t, tolerating(s.claimant(name, name)))
	}
	[]func(){
		func() { s.plugin.kill(t) },
		func() { killComponents("kubelet")(s, t, random) },
		func() { fullState(s, t, random) },
		func() { // As after a reboot.
			s.plugin.kill(t)
			specs, _ := filepath.Glob(filepath.Join(s.NodeDir("/var/run/cdi"), "heddle-claim-*"))
			for _, spec := range specs {
				err = errors.Join(err, os.Remove(spec))
			}
		},
	}[random.IntN(4)]()
	if err != nil {
		t.Fatal(err)
	}
	s.revivePlugin(t)
	s.kubeletServes(t)
	for _, name := range pods {
		s.waitReady(t, name)
	}
	s.oneHolder(t)
	s.remove(t, pods...)
	for _, name := range pods {
		err = errors.Join(err, s.client.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.configure(t, string(text))
	s.waitShares(t, soakSlots, soakCores, soakGiB)
}

// oneHolder fails if a GPU of a prepared claim has another holder, by the claims' records and the plugin's report.
func (s *soak) oneHolder(t *testing.T) {
	t.Helper()
	type sum struct {
		vcore int
		mib   int64
		whole string
	}
	byGPU := map[string]sum{}
	for _, c := range s.prepared(t) {
		for i := range c.Devices {
			d := &c.Devices[i]
			now := byGPU[d.GPU]
			if now.whole != "" || d.Share == nil && now != (sum{}) {
				t.Errorf("GPU %s is held by %s, and by %s %+v", d.GPU, c, now.whole, now)
			}
			if d.Share == nil {
				now.whole = c.String()
			} else {
				now.vcore, now.mib = now.vcore+d.Share.VCore, now.mib+d.Share.MemoryMiB
			}
			if byGPU[d.GPU] = now; now.vcore > 100 || now.mib > allGiB/8<<10 {
				t.Errorf("GPU %s: claims have %d %% of compute and %d MiB", d.GPU, now.vcore, now.mib)
			}
		}
	}
	for _, b := range s.account(t).Bindings { // Records of pods that are gone stay a while.
		for _, share := range b.Shares {
			if holder, claimed := byGPU[share.UUID]; claimed {
				t.Errorf("pod %s has a share of GPU %s, which claims hold: %+v", b.Pod, share.UUID, holder)
			}
		}
	}
}

// prepared reads the records of claims.
func (s *soak) prepared(t *testing.T) (all []*allocate.Claim) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.stateDir(), "claims", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // It was unprepared meanwhile.
		}
		c, err := allocate.ParseClaim(content, strings.TrimSuffix(filepath.Base(file), ".json"))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, c)
	}
	return all
}

// claimsLeft returns which records and specs are not of claims that pods have; empty if none is left.
func (s *soak) claimsLeft(t *testing.T) string {
	t.Helper()
	want := map[string]bool{}
	for _, p := range s.list(t) {
		for _, c := range p.Status.ResourceClaimStatuses {
			claim, err := s.client.ResourceV1().ResourceClaims(namespace).Get(t.Context(), *c.ResourceClaimName, metav1.GetOptions{})
			if err == nil && ready(&p) {
				want[string(claim.UID)] = true
			}
		}
	}
	names := map[string]bool{}
	for _, c := range s.prepared(t) {
		if !want[c.UID] {
			return fmt.Sprintf("%s is prepared, and no pod runs with it", c)
		}
		delete(want, c.UID)
		for i := range c.Devices {
			names[c.Devices[i].CDI] = true
		}
	}
	if len(want) > 0 {
		return fmt.Sprintf("pods run with %d claims that are not prepared", len(want))
	}
	specs, err := filepath.Glob(filepath.Join(s.NodeDir("/var/run/cdi"), "heddle-claim-*"))
	if err != nil || len(specs) != len(names) {
		return fmt.Sprintf("%d devices of claims have %d specs, %v", len(names), len(specs), err)
	}
	return ""
}
