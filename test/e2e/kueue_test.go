//go:build e2e && linux

package e2e

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

// startKueue runs Kueue's own controller against the cluster. Its webhooks only add
// what the objects of these tests have.
func (b *bed) startKueue(t *testing.T) {
	t.Helper()
	program, module := b.workloadProgram(t, "sigs.k8s.io/kueue/cmd/kueue")
	b.kubectl(t, "apply", "--server-side", "-f", filepath.Join(module, "config/components/crd/bases"))
	b.kubectl(t, "wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
	b.kubectl(t, "create", "namespace", "kueue-system")
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "namespace", "kueue-system", "--wait=true") })
	certs := t.TempDir()
	pair(t, certs)
	config := filepath.Join(certs, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: config.kueue.x-k8s.io/v1beta1
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:19441"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: 19443, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 200, burst: 300}
integrations: {frameworks: [batch/job]}
`, certs), 0o600); err != nil {
		t.Fatal(err)
	}
	// It reads the certificate of its metrics in /etc whatever its configuration has.
	const script = `mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics && cp -r "$1" /etc/kueue/metrics/certs &&
exec "$2" --config "$3" --feature-gates=VisibilityOnDemand=false --zap-log-level=2`
	b.runWorkload(t, "unshare", "--mount", "sh", "-c", script, "sh", certs, program, config)
}

// pair writes a certificate and its key.
func pair(t *testing.T, dir string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	server.Close()
	certificate := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// mixedFleet is the demo's: DGX in four leaf groups, two NVL72 racks, two
// dragonflies in a switchbox and a node for storage; and two racks of which the second
// is across two leaf groups. It returns the names by shape.
func (b *bed) mixedFleet(t *testing.T) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	var reports []*v1alpha1.NodeTopology
	add := func(shape, name string, spec v1alpha1.NodeTopologySpec) {
		if err := b.AddSimulatedNode(t.Context(), cluster.SimulatedNode{Name: name}); err != nil {
			t.Fatal(err)
		}
		names[shape] = append(names[shape], name)
		r := reportOf(name, b.node(t, name).UID, "")
		r.Spec = spec
		reports = append(reports, r)
	}
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "node", "-l", "type=kwok", "--wait=false") })
	for unit := range 4 {
		for seat := range 8 {
			add("leaf", fmt.Sprintf("su%d-dgx%d", unit, seat), reportOf("", "", fmt.Sprintf("b83fd200000001%02d", unit)).Spec)
		}
	}
	for i := range 72 {
		spec := reportOf("", "", fmt.Sprintf("b83fd200000002%02d", rackLeaf(i))).Spec
		spec.NVLinkDomain = fmt.Sprintf("5d1bd1a0-71ac-4e8b-9b1d-0000000000%02d.1", i/18)
		add("leaf.nvlink", fmt.Sprintf("r%d-tray%02d", i/18, i%18), spec)
	}
	for i := range 4 {
		add("switchbox.dragonfly", fmt.Sprint("h20-", i), v1alpha1.NodeTopologySpec{
			Path: []string{"switchbox-1", fmt.Sprint("dragonfly-", i/2)}, PathSource: v1alpha1.SourceStatic,
		})
	}
	add("node", "storage1", v1alpha1.NodeTopologySpec{})
	b.report(t, reports...)
	return names
}

// rackLeaf is the leaf group of a tray: they take 18, 18, 24 and 12, so that the last
// of four racks is on two.
func rackLeaf(tray int) int {
	if tray < 36 {
		return tray / 18
	}
	return 2 + (tray-36)/24
}

// TestKueueAdmitsOnEveryPartOfAMixedFleet has Kueue's own controller admit a job that
// needs every node of each shape, and jobs that need one group: no node is missing in
// Kueue's view, and an NVLink domain across leaf groups is whole.
func TestKueueAdmitsOnEveryPartOfAMixedFleet(t *testing.T) {
	b := shared
	b.topologyCRD(t)
	b.startKueue(t)
	names := b.mixedFleet(t)
	b.startTopoMaster(t, "kueue", 19404, "--exports", "labels,kueue")
	eventually(t, 2*time.Minute, func() string {
		for shape, want := range names {
			out := strings.Fields(b.kubectl(t, "get", "nodes", "-l", wellknown.TopologyShape+"="+shape+",type=kwok", "-o", "name"))
			if len(out) != len(want) {
				return fmt.Sprintf("%d of %d nodes have the shape %s", len(out), len(want), shape)
			}
		}
		return ""
	})
	queues := map[string]string{"racks": "leaf.nvlink"}
	for shape := range names {
		queues[strings.ReplaceAll(shape, ".", "-")] = shape
	}
	for queue, shape := range queues {
		topology := "heddle-" + queue
		if queue == "racks" {
			topology = "heddle-nvlink"
		}
		b.applied(t, fmt.Sprintf(`apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: %[1]s}
spec: {nodeLabels: {%[2]s: %[3]s, type: kwok}, topologyName: %[4]s}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: %[1]s}
spec:
  namespaceSelector: {}
  resourceGroups:
  - {coveredResources: [cpu], flavors: [{name: %[1]s, resources: [{name: cpu, nominalQuota: 100000}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: %[1]s, namespace: default}
spec: {clusterQueue: %[1]s}
`, queue, wellknown.TopologyShape, shape, topology))
	}
	const key = wellknown.TopologyPrefix
	for _, tt := range []struct {
		queue, ask, level string
		pods              int
		// all is a job for every node, and within the prefix of the names of the
		// others' nodes.
		all    bool
		within string
	}{
		{queue: "leaf", ask: "preferred", level: key + "leaf", pods: 32, all: true},
		{queue: "leaf-nvlink", ask: "preferred", level: key + "nvlink", pods: 72, all: true},
		{queue: "switchbox-dragonfly", ask: "required", level: key + "switchbox", pods: 4, all: true},
		{queue: "node", ask: "required", level: "kubernetes.io/hostname", pods: 1, all: true},
		{queue: "racks", ask: "required", level: key + "nvlink", pods: 18, within: "r"},
	} {
		t.Run(tt.queue, func(t *testing.T) {
			b.applied(t, fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, namespace: default, labels: {kueue.x-k8s.io/queue-name: %[1]s}}
spec:
  suspend: true
  parallelism: %[2]d
  completions: %[2]d
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-%[3]s-topology: %[4]s}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: none, resources: {requests: {cpu: "%[5]d"}}}]
`, tt.queue, tt.pods, tt.ask, tt.level, map[bool]int{true: 40, false: 20}[tt.all]))
			t.Cleanup(func() { b.kubectlAfter(t, "delete", "job", tt.queue, "--wait=false") })
			hosts := b.admitted(t, tt.queue)
			switch {
			case tt.all && !slices.Equal(hosts, slices.Sorted(slices.Values(names[queues[tt.queue]]))):
				t.Errorf("admitted on %d of %d nodes: %v", len(hosts), tt.pods, hosts)
			case tt.within != "" && slices.ContainsFunc(hosts, func(h string) bool { return h[:2] != hosts[0][:2] }):
				t.Errorf("admitted across racks: %v", hosts)
			}
		})
	}
}

// admitted waits until Kueue admits a queue's workload, and returns the hosts.
func (b *bed) admitted(t *testing.T, queue string) (hosts []string) {
	t.Helper()
	eventually(t, time.Minute, func() string {
		var list struct {
			Items []struct {
				Spec   struct{ QueueName string }
				Status struct {
					Conditions []struct{ Type, Status, Message string }
					Admission  struct {
						PodSetAssignments []struct {
							TopologyAssignment struct {
								Domains []struct {
									Values []string
									Count  int
								}
							}
						}
					}
				}
			}
		}
		text := b.kubectl(t, "get", "workloads.kueue.x-k8s.io", "-o", "json")
		if err := json.Unmarshal([]byte(text), &list); err != nil { //nolint:musttag // Names are compared without case.
			return err.Error()
		}
		for i := range list.Items {
			w := &list.Items[i]
			if w.Spec.QueueName != queue {
				continue
			}
			for _, a := range w.Status.Admission.PodSetAssignments {
				for _, d := range a.TopologyAssignment.Domains {
					hosts = append(hosts, d.Values[len(d.Values)-1])
				}
			}
			if len(hosts) > 0 {
				slices.Sort(hosts)
				return ""
			}
			return fmt.Sprintf("the workload is not admitted: %+v", w.Status.Conditions)
		}
		return "there is no workload"
	})
	return hosts
}

// applied applies objects.
func (b *bed) applied(t *testing.T, text string) {
	t.Helper()
	if err := b.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}
