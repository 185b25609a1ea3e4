//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/ib"
)

// cables is a fat tree of eight hosts with eight HCAs each, in ibsim, with a
// worker on every host.
type cables struct {
	*bed
	sim     *ibsim.Sim
	tree    ibsim.FatTree
	workers []*worker.Worker
}

// simulated is a host of the fabric: a replayed machine, with the GUIDs of the
// host's HCAs.
type simulated struct{ machine *machine.Machine }

func (s simulated) Machine() *machine.Machine { return s.machine }
func (s simulated) Changed() <-chan struct{}  { return nil }

func cableNode(host int) string { return fmt.Sprintf("cable-%d", host) }

func newCables(t *testing.T) *cables {
	t.Helper()
	c := &cables{bed: shared(t), tree: ibsim.FatTree{Hosts: 8, Rails: 8, PerUnit: 4, Spines: 2, Uplinks: 2}}
	c.topologyCRD(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "fat.net"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.tree.Write(file), file.Close()); err != nil {
		t.Fatal(err)
	}
	c.sim = ibsim.Run(t, file.Name())
	for host := range c.tree.Hosts {
		c.newNode(t, cableNode(host))
		c.kubectl(t, "patch", "node", cableNode(host), "--subresource=status", "-p",
			`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "test", "message": "test"}]}}`)
		c.workers = append(c.workers, c.newWorker(t, host))
	}
	return c
}

func (c *cables) newWorker(t *testing.T, host int) *worker.Worker {
	t.Helper()
	m := machines.Load(t, "h800-8ib-bond")
	m.HCAs = fabricOf(m.HCAs)
	for i := range m.HCAs {
		g := c.tree.HCA(host, rail(t, m.HCAs[i].CharDevices.UMAD[0]))[2:]
		m.HCAs[i].NodeGUID = strings.Join([]string{g[:4], g[4:8], g[8:12], g[12:]}, ":")
	}
	client, err := kube.NewClient(c.Kubeconfig(), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	changed, log := notify.New(), slog.New(slog.DiscardHandler)
	source := ib.New(func(umad string) (*ib.UMAD, error) { return c.sim.Open(c.tree.HCA(host, rail(t, umad))) }, "", changed)
	configs, err := config.NewWatcher("", config.Uncompiled{}, log)
	if err != nil {
		t.Fatal(err)
	}
	return worker.New(worker.Options{
		NodeName: cableNode(host), Machines: simulated{m}, Configs: configs, Sources: []worker.Source{source}, Changed: changed,
		Publisher: worker.NewPublisher(client, cableNode(host)), Interval: time.Minute,
		Metrics: worker.NewMetrics(prometheus.NewRegistry()), Log: log,
	})
}

// fabricOf leaves out the members of the bond, which ibsim does not have.
func fabricOf(all []machine.HCA) (out []machine.HCA) {
	for i := range all {
		if len(all[i].CharDevices.UMAD) == 1 && all[i].Ports[0].LinkLayer == machine.InfiniBand {
			out = append(out, all[i])
		}
	}
	return out
}

// rail is the number of a umad device, which is the rail of the simulated HCA.
func rail(t *testing.T, umad string) int {
	t.Helper()
	var number int
	if _, err := fmt.Sscanf(filepath.Base(umad), "umad%d", &number); err != nil {
		t.Fatal(umad, err)
	}
	return number
}

func (c *cables) pass(t *testing.T, hosts ...int) {
	t.Helper()
	for _, host := range hosts {
		if err := c.workers[host].Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// placed is where the hosts are, by the name of their leaf group, and which of
// them are not Ready.
func (m *topoMaster) placed(t *testing.T) (groups map[string][]string, degraded []string) {
	t.Helper()
	_, _, body := m.get(t, "/node_group?kind=leaf")
	var tree []v1alpha1.Group
	if err := json.Unmarshal([]byte(body), &tree); err != nil {
		t.Fatal(err, body)
	}
	groups = map[string][]string{}
	for _, g := range tree {
		for _, n := range g.Child {
			if !strings.HasPrefix(n.Name, "cable-") {
				continue
			}
			groups[g.Name] = append(groups[g.Name], n.Name)
			if n.Status != "Ready" {
				degraded = append(degraded, n.Name)
			}
		}
	}
	return groups, degraded
}

func (m *topoMaster) findings(t *testing.T) (out []fabric.Finding) {
	t.Helper()
	_, _, body := m.get(t, "/v1/topology")
	var all snapshot.Topology
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatal(err)
	}
	for _, f := range all.Findings {
		if strings.HasPrefix(f.Node, "cable-") {
			out = append(out, f)
		}
	}
	return out
}

// TestCableMoves pulls cables in a simulated InfiniBand fabric that a real
// subnet manager has brought up, and looks at the answers of topo-master.
func TestCableMoves(t *testing.T) {
	c := newCables(t)
	manager := exec.CommandContext(t.Context(), "opensm", "-o", "-f", filepath.Join(t.TempDir(), "opensm.log"))
	manager.Env = append(os.Environ(), append(c.sim.Environ(c.tree.HCA(0, 0)), "OSM_TMP_DIR="+t.TempDir(), "OSM_CACHE_DIR="+t.TempDir())...)
	if out, err := manager.CombinedOutput(); err != nil {
		t.Fatalf("opensm: %v\n%s", err, out)
	}
	m := c.startTopoMaster(t, "cables", 19403, "--exports", "none", "--namespace=")
	c.pass(t, 0, 1, 2, 3, 4, 5, 6, 7)

	leaf := func(host, rail int) string {
		id, _ := c.tree.Leaf(host, rail)
		return id[2:]
	}
	units := map[string][]string{
		c.tree.LeafName(0, 0): {"cable-0", "cable-1", "cable-2", "cable-3"},
		c.tree.LeafName(4, 0): {"cable-4", "cable-5", "cable-6", "cable-7"},
	}
	expect := func(what string, groups map[string][]string, degraded []string, faults ...string) {
		t.Helper()
		eventually(t, func() string {
			placed, bad := m.placed(t)
			var found []string
			for _, f := range m.findings(t) {
				text := fmt.Sprintf("%s %s rail %d", f.Kind, f.Node, f.Rail)
				if f.Expected.ID != "" && f.Found.ID != "" {
					text += fmt.Sprintf(": %s, not %s", f.Found.ID, f.Expected.ID)
				}
				found = append(found, text)
			}
			if diff := cmp.Diff(groups, placed) + cmp.Diff(degraded, bad) + cmp.Diff(faults, found); diff != "" {
				return what + " (-want +got):\n" + diff
			}
			return ""
		})
	}
	expect("as built", units, nil)

	hca := func(r int) string { return c.tree.HCA(5, r) }
	number := c.railOf(t, 5, 2)
	if err := c.sim.Move(hca(2), 1, "S-"+leaf(0, 2), 40); err != nil {
		t.Fatal(err)
	}
	c.pass(t, 5)
	expect("one cable in another unit's leaf", units, []string{"cable-5"},
		fmt.Sprintf("miscabled cable-5 rail %d: %s, not %s", number, leaf(0, 2), leaf(5, 2)))

	home := func(r int) {
		t.Helper()
		id, port := c.tree.Leaf(5, r)
		if err := c.sim.Move(hca(r), 1, id, port); err != nil {
			t.Fatal(err)
		}
	}
	home(2)
	c.pass(t, 5)
	expect("back", units, nil)

	for r := range c.tree.Rails {
		if err := c.sim.Move(hca(r), 1, "S-"+leaf(0, r), 41); err != nil {
			t.Fatal(err)
		}
	}
	c.pass(t, 5)
	expect("a node carried to another unit", map[string][]string{
		c.tree.LeafName(0, 0): {"cable-0", "cable-1", "cable-2", "cable-3", "cable-5"},
		c.tree.LeafName(4, 0): {"cable-4", "cable-6", "cable-7"},
	}, nil)
	for r := range c.tree.Rails {
		home(r)
	}
	c.pass(t, 5)
	expect("carried back", units, nil)
	m.stop()
}

// railOf is the rail that a worker publishes for an HCA.
func (c *cables) railOf(t *testing.T, host, umad int) int32 {
	t.Helper()
	var nt v1alpha1.NodeTopology
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "nt", cableNode(host), "-o", "json")), &nt); err != nil {
		t.Fatal(err)
	}
	guid := c.tree.HCA(host, umad)[2:]
	for _, r := range nt.Spec.Rails {
		if strings.ReplaceAll(r.GUID, ":", "") == guid {
			return r.Rail
		}
	}
	t.Fatalf("no rail has GUID %s: %+v", guid, nt.Spec.Rails)
	return 0
}
