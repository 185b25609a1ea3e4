//go:build e2e && linux

package devices

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
)

// claimsAndBack hands the node to claims while pods with shares come and go: GPUs follow as they are free. Pods with
// claims run beside those with shares, and something fails meanwhile. Then the GPUs go back, and nothing is left of
// the claims.
func claimsAndBack(s *soak, t *testing.T, random *rand.Rand) {
	text, err := os.ReadFile(filepath.Join(s.dir, "config", "cluster-config"))
	if err != nil {
		t.Fatal(err)
	}
	s.configure(t, strings.Replace(string(text), "mode: sgpu", "mode: claims", 1))
	eventually(t, func() string {
		n := 0
		for name, d := range s.claimable(t) {
			if strings.HasPrefix(name, string(claims.GPU)+"-") && len(d.Taints) == 0 {
				n++
			}
		}
		if n < 2 {
			return fmt.Sprintf("%d GPUs are free for claims", n)
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
	s.oneHolder(t, pods)
	s.remove(t, pods...)
	for _, name := range pods {
		err = errors.Join(err, s.client.ResourceV1().ResourceClaims(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s.configure(t, string(text))
	s.waitShares(t, allSlots, allCores, allGiB)
	s.claimLeft(t)
}

// oneHolder compares what the pods of claims were told with what the plugin has recorded of all.
func (s *soak) oneHolder(t *testing.T, pods []string) {
	t.Helper()
	holder := map[string]string{}
	for _, name := range pods {
		gpus, _ := given(t, s.report(t, name, "app"))
		if len(gpus) != 1 || holder[gpus[0]] != "" {
			t.Errorf("pod %s has GPUs %v, and %s has them too", name, gpus, holder[strings.Join(gpus, "")])
			continue
		}
		holder[gpus[0]] = name
	}
	for _, b := range s.account(t).Bindings {
		for _, share := range b.Shares {
			if holder[share.UUID] != "" {
				t.Errorf("pod %s has a share of GPU %s, which %s has", b.Pod, share.UUID, holder[share.UUID])
			}
		}
		for _, uuid := range b.GPUs {
			if other := holder[uuid]; other != "" && other != b.Pod {
				t.Errorf("GPU %s is recorded for %s, and %s has it", uuid, b.Pod, other)
			}
		}
	}
}
