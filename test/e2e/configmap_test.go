//go:build e2e && linux

package e2e

import (
	"strings"
	"testing"
)

// TestChartKeepsWhatKubectlWrote applies the documented ConfigMap with kubectl, before an
// install and after one: the chart neither fails nor takes it back, until it is deleted.
func TestChartKeepsWhatKubectlWrote(t *testing.T) {
	b := shared(t)
	const name, release = "heddle-device-config", "kept"
	mode := func() string {
		return b.kubectl(t, "get", "configmap", name, "-n", suite, "-o", "jsonpath={.data.nodes-config}")
	}
	helm := func(args ...string) string {
		return b.helm(t, append(args, release, "deploy/helm/heddle", "-n", suite,
			"--set", "localImages=true,gpuLabel.enabled=false,gpuDevice.enabled=false")...)
	}
	b.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "configmap", name, "-n", suite, "--ignore-not-found") })

	b.kubectl(t, "apply", "-f", b.example("device-config.yaml"))
	out := helm("install")
	if !strings.Contains(mode(), "sample-node1") || !strings.Contains(out, "was written with kubectl") {
		t.Errorf("after an install nodes-config is %q, and helm answered\n%s", mode(), out)
	}
	helm("upgrade")
	b.helm(t, "uninstall", release, "-n", suite, "--wait", "--no-hooks")
	if !strings.Contains(mode(), "sample-node1") {
		t.Errorf("an uninstall took away what was not the chart's")
	}
	b.kubectl(t, "delete", "configmap", name, "-n", suite)

	helm("install")
	if got := mode(); strings.Contains(got, "sample-node1") {
		t.Fatalf("the values are not in place: %q", got)
	}
	for _, apply := range [][]string{{"apply"}, {"apply", "--server-side", "--force-conflicts"}} {
		b.kubectl(t, append(apply, "-f", b.example("device-config.yaml"))...)
		helm("upgrade")
		if !strings.Contains(mode(), "sample-node1") {
			t.Errorf("after kubectl %v and an upgrade nodes-config is %q", apply, mode())
		}
	}
	b.kubectl(t, "delete", "configmap", name, "-n", suite)
	helm("upgrade")
	if strings.Contains(mode(), "sample-node1") {
		t.Error("the values are not back")
	}
	b.helm(t, "uninstall", release, "-n", suite, "--wait", "--no-hooks")
}
