//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/cluster"
)

// stepNamesOfPods asks the device plugin which pods have what: a pod of another user gets no
// name, the account of a Prometheus with the role gets all, and so does the administrator's
// command, from a machine that is no node.
func stepNamesOfPods(t *testing.T, b *removable) {
	const stranger, series = "stranger", "heddle_share_memory_bytes{"
	// So it would be found by an answer to all.
	named := fmt.Sprintf("pod=%q", sharer)
	b.applied(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: %q, command: [sleep, "600"]}]
  nodeSelector: {kubernetes.io/hostname: %s}
`, stranger, cluster.BusyboxImage, b.Node()))
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "pod", stranger, "--wait=false") })
	b.kubectl(t, "wait", "pod/"+stranger, "--for=condition=Ready", "--timeout=3m")
	plugin := b.pods(t, b.plugin)[0]
	ask := func(path, token string) string {
		script := "wget -q -O- "
		if token != "" {
			script += "--header 'Authorization: Bearer " + token + "' "
		}
		script += "http://" + plugin.Status.PodIP + ":9102" + path + " 2>&1 || true"
		return b.kubectl(t, "exec", stranger, "--", "sh", "-c", script)
	}
	b.kubectl(t, "-n", suite, "create", "serviceaccount", "prometheus")
	t.Cleanup(func() { b.kubectlAfter(t, "-n", suite, "delete", "serviceaccount", "prometheus") })
	token := func(args ...string) string {
		return strings.TrimSpace(b.kubectl(t, append([]string{"-n", suite, "create", "token", "prometheus"}, args...)...))
	}
	bound := token("--audience", report.Audience)
	for _, tt := range []struct{ name, token, rejected string }{
		{"no token", "", "401"}, {"a forged token", "forged", "401"}, {"a token without the right", bound, "403"},
	} {
		if got := ask("/v1/bindings", tt.token); !strings.Contains(got, "HTTP/1.1 "+tt.rejected) || strings.Contains(got, sharer) {
			t.Errorf("%s: bindings: %s", tt.name, got)
		}
		if got := ask("/metrics", tt.token); strings.Contains(got, sharer) || strings.Contains(got, series) ||
			!strings.Contains(got, "\nheddle_resource_registered{") {
			t.Errorf("%s: metrics: %s", tt.name, got)
		}
	}
	b.kubectl(t, "create", "clusterrolebinding", "prometheus", "--clusterrole=heddle-metrics-reader", "--serviceaccount="+suite+":prometheus")
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "clusterrolebinding", "prometheus") })
	// Another token, as the answer about the one above is believed for ten seconds.
	for name, token := range map[string]string{
		"a token for the daemon": token("--audience", report.Audience), "a token for the API server": token(),
	} {
		if got := ask("/v1/bindings", token); !strings.Contains(got, `"pod":"`+sharer+`"`) {
			t.Errorf("%s: bindings: %s", name, got)
		}
		if got := ask("/metrics", token); !strings.Contains(got, series) || !strings.Contains(got, named) {
			t.Errorf("%s: metrics: %s", name, got)
		}
	}
}
