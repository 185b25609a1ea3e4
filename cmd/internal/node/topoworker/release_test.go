package topoworker

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/test/nodeapi"
)

func TestReleaseFollowsTheNode(t *testing.T) {
	api := nodeapi.New(t, "n1")
	r := &released{nodesync.NewWatch(api.Client(), "n1"), host.NewRelease()}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, one := range []runner{r.node, r} {
		wg.Go(func() {
			if err := one.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	for _, step := range []struct {
		name, text string
		released   bool
	}{
		{"asked for", `{"until":"2999-01-01T00:00:00Z"}`, true},
		{"a typo", "10m", false},
		{"again", `{"until":"2999-01-02T00:00:00Z"}`, true},
		{"over", `{"until":"2026-01-01T00:00:00Z"}`, false},
	} {
		api.EditNode(func(n *corev1.Node) { n.Annotations = map[string]string{wellknown.GPURelease: step.text} })
		tick, late := time.NewTicker(time.Millisecond), time.After(20*time.Second)
		for r.release.Active() != step.released {
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("%s: released is %t", step.name, !step.released)
			}
		}
		tick.Stop()
	}
}
