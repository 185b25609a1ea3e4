//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

const podGroupCRD = "podgroups.scheduling.x-k8s.io"

// TestSchedulerFromTheChart is the documented installation: two replicas under
// their own service account, pods that name no scheduler, and a gang whose size
// stands in a PodGroup object. The CRD of those outlives the release.
func TestSchedulerFromTheChart(t *testing.T) {
	b := shared(t)
	if err := b.installer.Image(t.Context(), b.Cluster, schedulerName); err != nil {
		t.Fatal(err)
	}
	err := b.installer.Chart(t.Context(), b.Cluster, "--set", "gpuLabel.enabled=false,gpuDevice.enabled=false,gpuScheduler.deploy=true")
	if err != nil {
		t.Error(err)
		out, _ := b.Kubectl(t.Context(), "-n", suite, "describe", "pods", "-l", "app.kubernetes.io/name="+schedulerName)
		log, _ := b.Kubectl(t.Context(), "-n", suite, "logs", "deploy/"+schedulerName, "--tail=40")
		t.Logf("%s\n%s", out, log)
		t.FailNow()
	}
	release := strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q"))
	uninstall := func(ctx context.Context) {
		if release == "" {
			return
		}
		if _, err := b.installer.Helm(ctx, b.Cluster, "uninstall", release, "-n", suite, "--wait", "--no-hooks"); err != nil {
			t.Error(err)
		}
		release = ""
	}
	t.Cleanup(func() { uninstall(context.WithoutCancel(t.Context())) })
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "crd", podGroupCRD, "--ignore-not-found") })
	if pods := b.pods(t, schedulerName); len(pods) != 2 {
		t.Errorf("%d replicas, want 2", len(pods))
	}

	f := &fleet{bed: b, namespace: "sched-chart"}
	b.kubectl(t, "create", "namespace", f.namespace)
	t.Cleanup(func() {
		b.kubectlAfter(t, "-n", f.namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
		b.kubectlAfter(t, "delete", "namespace", f.namespace, "--wait=false")
	})
	b.kubectl(t, "wait", "--for=create", "-n", f.namespace, "serviceaccount/default", "--timeout=3m")
	b.kubectl(t, "wait", "--for=condition=Established", "crd/"+podGroupCRD, "--timeout=3m")
	err = b.Apply(t.Context(), `{"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": {"name": "pair", "namespace": "`+f.namespace+`"}, "spec": {"minMember": 2, "scheduleTimeoutSeconds": 20}}`)
	if err != nil {
		t.Fatal(err)
	}
	f.gpus(t, "chart-gpu", 4, nil)
	eventually(t, func() string { return f.goesTo(t, f.pod("probe", 1, nil), schedulerName) })
	labels := map[string]string{"scheduling.x-k8s.io/pod-group": "pair"}
	f.create(t, f.pod("pair-0", 2, labels))
	// It is not in the queue yet, so only an Event has the reason.
	eventually(t, func() string {
		got := f.kubectl(t, "-n", f.namespace, "get", "events", "--field-selector=reason=GangIncomplete", "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(got, "podgroup pair waits for pods: 1 of 2 exist") {
			return "Events: " + got
		}
		return ""
	})
	f.create(t, f.pod("pair-1", 2, labels))
	f.running(t, "pair", 2)
	for _, p := range f.podsOf(t, "pair") {
		if p.Spec.SchedulerName != schedulerName {
			t.Errorf("%s went to %s", p.Name, p.Spec.SchedulerName)
		}
	}
	// By its own rights it makes what shows a gang of labels.
	for i := range 2 {
		f.create(t, f.pod(fmt.Sprintf("labeled-%d", i), 1, map[string]string{gangName: "labeled", gangLeast: "2"}))
	}
	f.gpus(t, "chart-more", 4, nil)
	f.running(t, "labeled", 2)
	f.shows(t, "labeled", "{.spec.minMember} {.status.phase}", "2 Running")
	f.kubectl(t, "-n", f.namespace, "delete", "pods", "--all", "--force", "--grace-period=0")
	f.shows(t, "labeled", "{.metadata.uid}", "")
	uninstall(t.Context())
	b.kubectl(t, "get", "crd", podGroupCRD)
	b.kubectl(t, "get", "-n", f.namespace, "podgroups."+strings.TrimPrefix(podGroupCRD, "podgroups."), "pair")
}
