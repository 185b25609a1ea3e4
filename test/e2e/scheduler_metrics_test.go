//go:build e2e && linux

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSchedulerMetrics asks the scheduler as a Prometheus does: with the token of
// a service account that may get /metrics.
func TestSchedulerMetrics(t *testing.T) {
	const port = 19461
	f := newFleet(t)
	f.kill(t)
	f.process = exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(f.installer.Dir, schedulerName),
		"--config", f.config, fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1", "--cert-dir", t.TempDir(),
		"--authentication-kubeconfig", f.Kubeconfig(), "--authorization-kubeconfig", f.Kubeconfig())
	f.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := f.process.Start(); err != nil {
		t.Fatal(err)
	}
	f.gpus(t, "metrics", 4, nil)
	f.gang(t, "seen", 3, 1, nil)
	f.gang(t, "big", 3, 4, nil)
	f.running(t, time.Minute, "seen", 3)
	f.rejected(t, "big", 3, "rejected by podgroup big")

	f.kubectl(t, "-n", f.namespace, "create", "serviceaccount", "prometheus")
	f.kubectl(t, "create", "clusterrole", f.namespace, "--verb=get", "--non-resource-url=/metrics")
	f.kubectl(t, "create", "clusterrolebinding", f.namespace, "--clusterrole="+f.namespace, "--serviceaccount="+f.namespace+":prometheus")
	for _, kind := range []string{"clusterrolebinding", "clusterrole"} {
		t.Cleanup(func() { f.kubectlAfter(t, "delete", kind, f.namespace) })
	}
	token := strings.TrimSpace(f.kubectl(t, "-n", f.namespace, "create", "token", "prometheus"))
	ask := func(token string) (status int, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	if status, _ := ask(""); status != http.StatusForbidden {
		t.Errorf("without a token: %d", status)
	}
	eventually(t, 20*time.Second, func() string {
		status, body := ask(token)
		for _, want := range []string{
			`heddle_scheduler_gangs{state="Running"} 1`, `heddle_scheduler_gangs{state="Queued"} 1`,
			fmt.Sprintf(`heddle_scheduler_gang_rejected_seconds{namespace=%q,podgroup="big"}`, f.namespace),
			"heddle_scheduler_gang_duration_seconds_count 1", `heddle_scheduler_gangs_placed_total{kind="node"} 1`,
			"heddle_scheduler_gang_rejections_total", "heddle_scheduler_gpus_free ",
			// Off without a flag: a rejected gang would keep room by its nominations.
			`kubernetes_feature_enabled{name="NominatedNodeNameForExpectation",stage="BETA"} 0`,
		} {
			if !strings.Contains(body, want) {
				return fmt.Sprintf("%d, and it lacks %q", status, want)
			}
		}
		return ""
	})
}
