package ibsim_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/ib"
)

// administrator is opensm at work, until the test ends.
type administrator struct{ log *bufio.Scanner }

// administer starts ibsim on a fabric and opensm on a host of it, or skips.
func administer(t *testing.T, write func(io.Writer) error, host string) (*ibsim.Sim, *administrator) {
	t.Helper()
	opensm, err := exec.LookPath("opensm")
	if err != nil {
		t.Skip("no opensm (apt-get install opensm)")
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	netFile := filepath.Join(dir, "fabric.net")
	if err := os.WriteFile(netFile, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	sim := ibsim.Run(t, netFile)
	// It looks for changes every second, and logs when it is done.
	sm := exec.CommandContext(t.Context(), opensm, "-s", "1", "-f", "stdout")
	sm.Env = append(append(sm.Environ(), sim.Environ(host)...), "OSM_TMP_DIR="+dir, "OSM_CACHE_DIR="+dir)
	log, err := sm.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sm.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sm.Wait() }) // Ended by the test's context.
	a := &administrator{bufio.NewScanner(log)}
	a.swept(t)
	return sim, a
}

// swept waits until opensm has looked once more.
func (a *administrator) swept(t *testing.T) {
	t.Helper()
	for a.log.Scan() {
		if strings.Contains(a.log.Text(), "SUBNET UP") {
			return
		}
	}
	t.Fatalf("opensm ended: %v", a.log.Err())
}

// function is a virtual function on an HCA, with the LIDs that ibstat reads.
func function(t *testing.T, sim *ibsim.Sim, hca string) worker.Port {
	t.Helper()
	stat := exec.CommandContext(t.Context(), "ibstat")
	stat.Env = append(stat.Environ(), sim.Environ(hca)...)
	text, err := stat.CombinedOutput()
	if err != nil {
		t.Skipf("no ibstat (apt-get install infiniband-diags): %v\n%s", err, text)
	}
	lid := func(name string) uint16 {
		m := regexp.MustCompile(name + `: (\d+)`).FindSubmatch(text)
		if m == nil {
			t.Fatalf("ibstat has no %s:\n%s", name, text)
		}
		n, err := strconv.ParseUint(string(m[1]), 10, 16)
		if err != nil || n == 0 {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		return uint16(n)
	}
	return worker.Port{
		UMAD: []string{hca}, Virtual: true, Subnet: "fe80000000000000", LID: lid("Base lid"), SMLID: lid("SM lid"),
		Rail: v1alpha1.Rail{
			ID: hca, HCA: "mlx5_0", Port: 1, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
		},
	}
}

func link(p *worker.Port, id, name, port string) worker.Report {
	return worker.Report{Links: []worker.Link{{
		PortKey: p.Key(), Switch: v1alpha1.Switch{ID: id, Name: name}, SwitchPort: port, Confidence: 100,
	}}}
}

func TestRecordsNameTheLeafOfAVirtualFunction(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 4, Rails: 2, PerUnit: 2, Spines: 1, Uplinks: 1}
	sim, sm := administer(t, tree.Write, tree.HCA(0, 0))
	const host, rail = 3, 1
	p := function(t, sim, tree.HCA(host, rail))
	source := ib.New(sim.OpenVirtual, "", nil)
	q := worker.Query{Topology: config.Default().Topology, Ports: []worker.Port{p}}
	discover := func(state v1alpha1.LinkState) worker.Report {
		q.Ports[0].LinkState = state
		return source.Discover(t.Context(), q)
	}
	leaf, port := tree.Leaf(host, rail)
	built := link(&p, leaf[2:], tree.LeafName(host, rail), strconv.Itoa(port))
	if diff := cmp.Diff(built, discover(v1alpha1.LinkActive)); diff != "" {
		t.Fatalf("as built (-want +got):\n%s", diff)
	}

	wrong, _ := tree.Leaf(0, 0)
	if err := sim.Move(tree.HCA(host, rail), 1, wrong, 40); err != nil {
		t.Fatal(err)
	}
	want := link(&p, wrong[2:], tree.LeafName(0, 0), "40")
	sm.swept(t)
	if diff := cmp.Diff(built, discover(v1alpha1.LinkActive)); diff != "" {
		t.Fatalf("asked again before the port was down (-want +got):\n%s", diff)
	}
	for {
		discover(v1alpha1.LinkDown)
		got := discover(v1alpha1.LinkActive)
		if cmp.Equal(want, got) {
			return
		}
		// A sweep that began before the cable was in has no link, or the old one.
		if len(got.Links) > 0 && !cmp.Equal(built, got) {
			t.Fatalf("moved: %+v", got)
		}
		sm.swept(t)
	}
}

func TestRecordsNameTheBoardOfADirector(t *testing.T) {
	director := ibsim.Director{Hosts: 4, Rails: 2, Boards: 4, Spines: 2}
	sim, _ := administer(t, director.Write, director.HCA(0, 0))
	p := function(t, sim, director.HCA(2, 1))
	board, port := director.Board(2, 1)
	want := link(&p, ibsim.DirectorGUID, "MF0;director:CS8500", fmt.Sprintf("L%02d/U1/%d", board+1, port))
	q := worker.Query{Topology: config.Default().Topology, Ports: []worker.Port{p}}
	if diff := cmp.Diff(want, ib.New(sim.OpenVirtual, "", nil).Discover(t.Context(), q)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
