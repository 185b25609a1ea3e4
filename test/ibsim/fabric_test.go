package ibsim_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/ib"
)

// simulate starts ibsim on a fabric and has opensm bring it up, or skips.
func simulate(t *testing.T, write func(io.Writer) error, host string) *ibsim.Sim {
	t.Helper()
	opensm, err := exec.LookPath("opensm")
	if err != nil {
		t.Skip("no opensm (apt-get install opensm)")
	}
	dir := t.TempDir()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	netFile := filepath.Join(dir, "fabric.net")
	if err := os.WriteFile(netFile, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	sim := ibsim.Run(t, netFile)
	log := filepath.Join(dir, "opensm.log")
	sm := exec.CommandContext(t.Context(), opensm, "-o", "-f", log)
	sm.Env = append(append(sm.Environ(), sim.Environ(host)...), "OSM_TMP_DIR="+dir, "OSM_CACHE_DIR="+dir)
	if out, err := sm.CombinedOutput(); err != nil {
		t.Fatalf("opensm: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(log); err != nil || !bytes.Contains(text, []byte("SUBNET UP")) {
		t.Fatalf("opensm did not bring the fabric up: %v\n%s", err, text)
	}
	return sim
}

// host is a node of the fabric: its HCAs by rail, "" for one that fell off the bus.
type host struct {
	hcas []string
	gpus int32
	// unplugged are the rails of which the kernel reports that the link is down.
	unplugged []int
}

// report is what the worker of a host reports, by the switches' own answers.
func report(t *testing.T, source *ib.Source, h host) *v1alpha1.NodeTopologySpec {
	t.Helper()
	spec := &v1alpha1.NodeTopologySpec{}
	if h.gpus > 0 {
		spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-H100-80GB-HBM3", Count: h.gpus}}
	}
	q := worker.Query{Topology: config.Default().Topology}
	for number, hca := range h.hcas {
		if hca == "" {
			continue
		}
		rail := v1alpha1.Rail{
			Rail: int32(number), ID: hca, HCA: fmt.Sprintf("mlx5_%d", number), Port: 1, Role: string(machine.RoleFabric),
			LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
		}
		if slices.Contains(h.unplugged, number) {
			rail.LinkState = v1alpha1.LinkDown
		}
		spec.Rails = append(spec.Rails, rail)
		q.Ports = append(q.Ports, worker.Port{Rail: rail, UMAD: []string{hca}})
	}
	answers := source.Discover(t.Context(), q)
	for _, s := range answers.Skipped {
		t.Errorf("%s: %s", s.Name, s.Reason)
	}
	for _, l := range answers.Links {
		i := slices.IndexFunc(spec.Rails, func(r v1alpha1.Rail) bool { return r.ID == l.ID })
		spec.Rails[i].Switch, spec.Rails[i].SwitchPort = &l.Switch, l.SwitchPort
		spec.Rails[i].Source, spec.Rails[i].Confidence = v1alpha1.SourceIB, l.Confidence
	}
	return spec
}

// outcome is the tree in short: the nodes of every group, and the findings.
type outcome struct{ Groups, Findings []string }

func discover(t *testing.T, sim *ibsim.Sim, hosts []host) (out outcome) {
	t.Helper()
	builder := fabric.New(fabric.Preset(fabric.ModeLeaf, 0))
	source := ib.New(sim.Open, "", nil)
	for i, h := range hosts {
		builder.Put(fabric.Node{Name: fmt.Sprintf("node%02d", i), Ready: true, Report: fabric.Read(report(t, source, h))})
	}
	s := builder.Snapshot(time.Unix(1, 0))
	for _, group := range s.Child {
		var nodes []string
		for _, n := range group.Child {
			nodes = append(nodes, strings.TrimPrefix(n.Name, "node"))
		}
		out.Groups = append(out.Groups, strings.Join(nodes, " "))
	}
	for _, f := range s.Findings() {
		out.Findings = append(out.Findings,
			fmt.Sprintf("%s %s rail %d, expected %s, found %s", f.Node, f.Kind, f.Rail, f.Expected.Name, f.Found.Name))
	}
	return out
}

func compare(t *testing.T, what string, want, got outcome) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func move(t *testing.T, sim *ibsim.Sim, hca, to string, port int) {
	t.Helper()
	if err := sim.Move(hca, 1, to, port); err != nil {
		t.Fatal(err)
	}
}

func treeHosts(tree ibsim.FatTree) (all []host) {
	for h := range tree.Hosts {
		one := host{gpus: 8}
		for rail := range tree.HCAs(h) {
			one.hcas = append(one.hcas, tree.HCA(h, rail))
		}
		all = append(all, one)
	}
	return all
}

func TestTwoRailsPerLeaf(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 12, Rails: 8, PerUnit: 6, PerLeaf: 2, Spines: 2, Uplinks: 2}
	sim := simulate(t, tree.Write, tree.HCA(0, 0))
	hosts := treeHosts(tree)
	want := outcome{Groups: []string{"00 01 02 03 04 05", "06 07 08 09 10 11"}}
	compare(t, "as built", want, discover(t, sim, hosts))

	wrong, _ := tree.Leaf(5, 6)
	move(t, sim, tree.HCA(5, 4), wrong, 60)
	move(t, sim, tree.HCA(9, 2), "", 0)
	hosts[9].unplugged = []int{2}
	hosts[10].hcas[7] = ""
	want.Findings = []string{
		"node05 miscabled rail 4, expected leaf-su0-rail4, found leaf-su0-rail6",
		"node09 dead rail 2, expected leaf-su1-rail2, found ",
		"node10 missing rail 7, expected leaf-su1-rail6, found ",
	}
	compare(t, "a wrong cable, a dead port, a lost HCA", want, discover(t, sim, hosts))
}

func TestMixedShapes(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 18, Rails: 8, PerUnit: 9, Small: 4, Spines: 2, Uplinks: 2}
	sim := simulate(t, tree.Write, tree.HCA(0, 0))
	hosts := treeHosts(tree)
	hosts[8] = host{hcas: []string{tree.HCA(8, 3)}} // Such as that of UFM.
	want := outcome{Groups: []string{"00 01 02 03 04 05 06 07 08", "09 10 11 12 13 14 15 16 17"}}
	compare(t, "as built", want, discover(t, sim, hosts))

	wrong, _ := tree.Leaf(9, 3)
	move(t, sim, tree.HCA(1, 2), wrong, 60)
	hosts[15].hcas[6] = ""
	want.Findings = []string{
		"node01 miscabled rail 2, expected leaf-su0-rail2, found leaf-su1-rail3",
		"node15 missing rail 6, expected leaf-su1-rail6, found ",
	}
	compare(t, "a wrong cable, a lost HCA", want, discover(t, sim, hosts))
}

func TestDirector(t *testing.T) {
	director := ibsim.Director{Hosts: 10, Rails: 8, Boards: 16, Spines: 4}
	sim := simulate(t, director.Write, director.HCA(0, 0))
	hosts := make([]host, director.Hosts)
	for h := range hosts {
		hosts[h].gpus = 8
		for rail := range director.Rails {
			hosts[h].hcas = append(hosts[h].hcas, director.HCA(h, rail))
		}
	}
	want := outcome{Groups: []string{"00 01 02 03 04 05 06 07 08 09"}}
	compare(t, "as built", want, discover(t, sim, hosts))
	spec := report(t, ib.New(sim.Open, "", nil), hosts[3])
	board, port := director.Board(3, 5)
	got := [3]string{spec.Rails[5].Switch.ID, spec.Rails[5].Switch.Name, spec.Rails[5].SwitchPort}
	onBoard := fmt.Sprintf("L%02d/U1/%d", board+1, port)
	if want := [3]string{ibsim.DirectorGUID, "MF0;director:CS8500", onBoard}; got != want {
		t.Errorf("rail 5 is on %q, want %q", got, want)
	}

	move(t, sim, director.HCA(4, 4), "", 0)
	hosts[4].unplugged = []int{4}
	want.Findings = []string{"node04 dead rail 4, expected MF0;director:CS8500, found "}
	compare(t, "a dead port", want, discover(t, sim, hosts))
}

// The switch's end of a cable is read by queries with a route by LIDs, as perfquery does.
func TestCountersOfTheSwitch(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 4, Rails: 2, PerUnit: 4, Spines: 1, Uplinks: 1}
	sim := simulate(t, tree.Write, tree.HCA(0, 0))
	leaf, port := tree.Leaf(2, 1)
	count := func(node string, port int, counter string, n int) {
		t.Helper()
		if err := sim.Count(node, port, counter, n); err != nil {
			t.Fatal(err)
		}
	}
	source := ib.New(sim.Open, "", nil)
	read := func(at int64) (c *v1alpha1.Counters) {
		t.Helper()
		hca := tree.HCA(2, 1)
		rail := v1alpha1.Rail{
			ID: hca, HCA: "mlx5_1", Port: 1, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
		}
		q := worker.Query{
			Topology: config.Default().Topology, Ports: []worker.Port{{Rail: rail, UMAD: []string{hca}}}, Counted: time.Unix(at, 0),
		}
		r := source.Discover(t.Context(), q)
		if len(r.Links) != 1 || len(r.Skipped) != 0 {
			t.Fatalf("%+v", r)
		}
		return r.Links[0].Counters
	}
	if diff := cmp.Diff(&v1alpha1.Counters{}, read(1)); diff != "" {
		t.Errorf("no errors (-want +got):\n%s", diff)
	}
	count(leaf, port, "SymbolErrorCounter", 1234)
	count(leaf, port, "LinkErrorRecoveryCounter", 3)
	count(leaf, port, "LinkDownedCounter", 2)
	count(leaf, port, "PortRcvErrors", 7)
	count(leaf, port+1, "SymbolErrorCounter", 99) // Another port's, and the node's own.
	count(tree.HCA(2, 1), 1, "SymbolErrorCounter", 98)
	want := &v1alpha1.Counters{SymbolErrors: 1234, LinkErrorRecoveries: 3, LinkDowns: 2, ReceiveErrors: 7}
	if diff := cmp.Diff(want, read(2)); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
	if c := read(2); c != nil {
		t.Errorf("read twice for one reading of the node's: %+v", c)
	}
	count(leaf, port, "SymbolErrorCounter", 1<<20) // It stops, and ibsim has no wide ones.
	want.SymbolErrors = 65535
	if diff := cmp.Diff(want, read(3)); diff != "" {
		t.Errorf("a counter that stops (-want +got):\n%s", diff)
	}
}
