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

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/grafana"
	"github.com/heddle-dev/heddle/test/install"
)

// observedValues install all daemons on the real node, and the dashboards.
const observedValues = removableValues + `
gpuScheduler: {deploy: true, replicas: 1, affinity: *real}
monitoring: {dashboards: {enabled: true}, tokenSecret: {name: prometheus-token}}
`

// cordonedGPU is one of dgx-h100.
const cordonedGPU = "GPU-61313477-0e8d-47f7-ac46-372e96f2f690"

// TestDashboards: every query of every dashboard has a result in Prometheus' own
// engine, on what Prometheus' own scrapes have of the daemons of the chart, with
// the labels that the chart's monitors make.
func TestDashboards(t *testing.T) {
	t.Run("a DaemonSet for each", func(t *testing.T) {
		showsAll(t, "e2e-dashboards", []string{daemon, pluginName, topoWorkerName, topoMasterName, schedulerName}, "")
	})
	t.Run(nodeName, func(t *testing.T) {
		showsAll(t, "e2e-dashboards-node", []string{nodeName, topoMasterName, schedulerName}, "combined: true\n")
	})
}

func showsAll(t *testing.T, name string, programs []string, more string) {
	t.Helper()
	b := ownBed(t, cluster.Options{Name: name})
	values := b.observed(t, programs, observedValues+more)
	all := b.dashboards(t)
	p := b.prometheus(t, values)
	f := &fleet{bed: b, namespace: "observed"}
	b.kubectl(t, "create", "namespace", f.namespace)
	b.kubectl(t, "wait", "--for=create", "-n", f.namespace, "serviceaccount/default", "--timeout=3m")
	const leaf = "b83fd20000000d01"
	// One stays free as a whole.
	for _, name := range []string{"seen-a", "seen-b", "seen-c"} {
		f.gpus(t, name, 4, nil)
		b.report(t, reportOf(name, b.node(t, name).UID, leaf))
	}
	eventually(t, func() string {
		if up := p.query(t, `up == 1`); len(up) != len(programs) {
			return fmt.Sprintf("%d of %d targets answer: %v", len(up), len(programs), p.query(t, `up`))
		}
		return ""
	})
	// A rate needs two scrapes of a counter, some counters have no value before they
	// count, and the scheduler measures free capacity at most every ten seconds.
	pending := queriesOf(t, all)
	for round := 0; len(pending) > 0; round++ {
		if round == 4 {
			for _, q := range pending {
				t.Errorf("%s has no result: %s", q.Panel, q.Expr)
			}
			break
		}
		runs, waits := fmt.Sprintf("runs-%d", round), fmt.Sprintf("waits-%d", round)
		b.shareOnNode(t, fmt.Sprintf("share-%d", round))
		f.gang(t, runs, 2, 1, nil)
		f.gang(t, waits, 4, 4, nil)
		f.running(t, runs, 2)
		f.rejected(t, waits, 4, "rejected by podgroup")
		pending = p.without(t, pending, 12*time.Second)
	}
	// The namespace of a share is its pod's, not the daemon's.
	if got := p.query(t, `sum by (namespace, pod) (heddle_share_vcore_percent{pod="share-0"})`); len(got) != 1 ||
		got[0].Metric["namespace"] != "default" || got[0].Value != "30" {
		t.Errorf("the compute of a share: %+v", got)
	}
}

// without are the queries that have had no number as a result until then.
func (p *prometheusServer) without(t *testing.T, pending []grafana.Query, within time.Duration) []grafana.Query {
	t.Helper()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for end := time.Now().Add(within); len(pending) > 0 && time.Now().Before(end); <-tick.C {
		pending = slices.DeleteFunc(pending, func(q grafana.Query) bool {
			return slices.ContainsFunc(p.query(t, q.Expr), func(s promSample) bool { return s.Number })
		})
	}
	return pending
}

// absent are panels of what this cluster does not have.
func absent() []string {
	return []string{
		"heddle-node: Error reports of the driver", "heddle-node: Modes that wait", "heddle-node: Resources of other plugins",
		"heddle-shares: Shares without limits", "heddle-shares: MPS daemons", "heddle-shares: Ignored annotations",
		"heddle-shares: Memory used of memory given", "heddle-shares: Compute used", // A replayed GPU has no usage.
		"heddle-fabric: Nodes with a silent source", "heddle-fabric: Silent sources",
	}
}

// queriesOf are those of all dashboards that must have a result, and the values of
// their variables.
func queriesOf(t *testing.T, all map[string]*grafana.Dashboard) (must []grafana.Query) {
	t.Helper()
	without := absent()
	for uid, d := range all {
		for _, q := range d.Queries() {
			q.Panel = uid + ": " + q.Panel
			if at := slices.Index(without, q.Panel); at < 0 {
				must = append(must, q)
			} else if q.Empty == "" {
				t.Errorf("%s can be absent, and shows no word for that", q.Panel)
			}
		}
		for _, v := range d.Variables() {
			must = append(must, grafana.Query{Panel: uid + ": values of a variable", Expr: v})
		}
	}
	return must
}

// observed installs these programs, and returns the file of the chart's values.
func (b *bed) observed(t *testing.T, binaries []string, text string) (values string) {
	t.Helper()
	ctx := t.Context()
	if err := b.installer.Image(ctx, b.Cluster, binaries...); err != nil {
		t.Fatal(err)
	}
	dump, nodes := b.path("test/machines/dgx-h100.json"), filepath.Join(b.Dir(), "devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	machine, err := os.ReadFile(dump)
	if err != nil {
		t.Fatal(err)
	}
	// One GPU is unhealthy, one cordoned, and a label is another writer's.
	dump = filepath.Join(t.TempDir(), "machine.json")
	failing := strings.Replace(string(machine), `"state": "healthy"`, `"state": "unhealthy", "reason": "of this test"`, 1)
	if err := os.WriteFile(dump, []byte(failing), 0o600); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "annotate", "node", b.Node(), wellknown.CordonedGPUs+"="+cordonedGPU)
	b.kubectl(t, "label", "node", b.Node(), "nvidia.com/gpu.product=another")
	values = filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(strings.Replace(text, "gpuDevice: {", "gpuDevice: {replayDevices: "+nodes+", ", 1)), 0o600); err != nil {
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
	// No DNS has the name of its Service.
	if _, err := b.Expose(ctx, suite, topoMasterName, 0); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimSpace(b.kubectl(t, "-n", suite, "get", "service", topoMasterName, "-o", "jsonpath={.spec.clusterIP}"))
	b.helm(t, "upgrade", strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q")), "deploy/helm/heddle", "-n", suite,
		"--reuse-values", "--wait", "--timeout", "2m", "--set-json", `topoDiscovery.master.exports=["labels","conditions","hypernode"]`,
		"--set", "gpuScheduler.map.address=http://"+address+":9001/node_group")
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
	b.kubectl(t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=3m")
}
