//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/grafana"
	"github.com/heddle-dev/heddle/test/install"
)

// observedValues install all daemons on the real node, and the dashboards.
const observedValues = removableValues + `
gpuScheduler: {deploy: true, replicas: 1, affinity: *real}
monitoring: {dashboards: {enabled: true}}
`

// TestDashboards: every query of every dashboard has a result in Prometheus' own
// engine, on what Prometheus' own scrapes have of the daemons of the chart, with
// the labels that the chart's monitors make.
func TestDashboards(t *testing.T) {
	b := ownBed(t, cluster.Options{Name: "e2e-dashboards"})
	values := b.observed(t)
	all := b.dashboards(t)
	p := b.prometheus(t, values)
	f := &fleet{bed: b, namespace: "observed"}
	b.kubectl(t, "create", "namespace", f.namespace)
	b.kubectl(t, "wait", "--for=create", "-n", f.namespace, "serviceaccount/default", "--timeout=30s")
	f.gpus(t, "seen-a", 4, nil)
	f.gpus(t, "seen-b", 4, nil)
	const leaf = "b83fd20000000d01"
	for _, name := range []string{"seen-a", "seen-b"} {
		b.report(t, reportOf(name, b.node(t, name).UID, leaf))
	}
	eventually(t, 30*time.Second, func() string {
		if up := p.query(t, `up == 1`); len(up) != 5 {
			return fmt.Sprintf("%d of 5 targets answer: %v", len(up), p.query(t, `up`))
		}
		return ""
	})
	// A rate needs two scrapes of a counter, and some have no value before they count.
	for i := range 2 {
		b.shareOnNode(t, fmt.Sprintf("share-%d", i))
		f.gang(t, fmt.Sprintf("runs-%d", i), 2, 1, nil)
		f.gang(t, fmt.Sprintf("waits-%d", i), 3, 4, nil)
		f.running(t, time.Minute, fmt.Sprintf("runs-%d", i), 2)
		f.rejected(t, fmt.Sprintf("waits-%d", i), 3, "rejected by podgroup")
	}
	var absent []string
	eventually(t, time.Minute, func() string {
		var empty []string
		empty, absent = p.empty(t, all)
		return strings.Join(empty, "\n")
	})
	t.Logf("may be empty, and are here:\n%s", strings.Join(absent, "\n"))
	// The namespace of a share is its pod's, not the daemon's.
	if got := p.query(t, `sum by (namespace, pod) (heddle_share_vcore_percent{pod="share-0"})`); len(got) != 1 ||
		got[0].Metric["namespace"] != "default" || got[0].Value != "30" {
		t.Errorf("the compute of a share: %+v", got)
	}
}

// empty are the queries without a number as their result: those of panels that must
// have one, and those of things that can be absent.
func (p *prometheusServer) empty(t *testing.T, all map[string]*grafana.Dashboard) (empty, absent []string) {
	t.Helper()
	number := func(s promSample) bool { return s.Number }
	for uid, d := range all {
		for _, q := range d.Queries() {
			if at := uid + ": " + q.Panel + ": " + q.Expr; slices.ContainsFunc(p.query(t, q.Expr), number) {
				continue
			} else if q.MayBeEmpty {
				absent = append(absent, at)
			} else {
				empty = append(empty, at)
			}
		}
		for _, v := range d.Variables() {
			if len(p.query(t, v)) == 0 {
				empty = append(empty, uid+": the values of a variable: "+v)
			}
		}
	}
	slices.Sort(empty)
	slices.Sort(absent)
	return empty, absent
}

// observed installs all daemons, and returns the file of the chart's values.
func (b *bed) observed(t *testing.T) (values string) {
	t.Helper()
	ctx := t.Context()
	binaries := []string{daemon, pluginName, topoWorkerName, topoMasterName, schedulerName}
	if err := b.installer.BuildAll(ctx, binaries...); err != nil {
		t.Fatal(err)
	}
	for _, binary := range binaries {
		archive, err := b.installer.Pack(binary)
		if err == nil {
			err = b.LoadImage(ctx, archive)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dump, nodes := b.path("test/machines/dgx-h100.json"), filepath.Join(b.Dir(), "devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	values = filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(strings.Replace(observedValues, "gpuDevice: {", "gpuDevice: {replayDevices: "+nodes+", ", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.NodeExec(ctx, "busybox", "mkdir", "-p", "/run/cdi"); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "create", "namespace", suite)
	b.kubectl(t, "-n", suite, "create", "configmap", "removable", "--from-file=machine.json="+dump)
	if err := b.installer.Chart(ctx, b.Cluster, "--values", values); err != nil {
		t.Error(err)
		for _, what := range binaries {
			out, _ := b.Kubectl(context.WithoutCancel(ctx), "-n", suite, "logs", "-l", "app.kubernetes.io/name="+what, "--tail=20")
			t.Logf("%s:\n%s", what, out)
		}
		t.FailNow()
	}
	return values
}

// dashboards are those that are installed, by their ID.
func (b *bed) dashboards(t *testing.T) map[string]*grafana.Dashboard {
	t.Helper()
	var list corev1.ConfigMapList
	if err := json.Unmarshal([]byte(b.kubectl(t, "get", "configmaps", "-A", "-l", "grafana_dashboard=1", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]*grafana.Dashboard{}
	for i := range list.Items {
		for file, text := range list.Items[i].Data {
			d, err := grafana.Decode([]byte(text))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all[d.UID] = d
		}
	}
	if len(all) != 5 {
		t.Fatalf("%d dashboards", len(all))
	}
	return all
}

// shareOnNode runs a pod with a share of a GPU of the real node.
func (b *bed) shareOnNode(t *testing.T, name string) {
	t.Helper()
	pod := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "default"}, "spec": {
		"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 1,
		"nodeSelector": {"kubernetes.io/hostname": %q}, "containers": [{"name": "main", "image": %q,
		"resources": {"limits": {"nvidia.com/sgpu": 1, "nvidia.com/vcore": 30, "nvidia.com/vmemory": 8}}}]}}`,
		name, b.Node(), cluster.PauseImage)
	if err := b.Apply(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=60s")
}
