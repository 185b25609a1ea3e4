package ib_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/test/ibsim"
	"github.com/heddle-dev/heddle/topo/worker"
	"github.com/heddle-dev/heddle/topo/worker/ib"
)

func fatTree(t *testing.T, f ibsim.FatTree) *ibsim.Sim {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "fat.net"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Write(file), file.Close()); err != nil {
		t.Fatal(err)
	}
	return ibsim.Run(t, file.Name())
}

// port is an active InfiniBand port of one umad device.
func port(id, umad string) worker.Port {
	return worker.Port{
		Rail: v1alpha1.Rail{
			ID: id, Port: 1, HCA: "mlx5_" + umad, LinkLayer: machine.InfiniBand, LinkState: v1alpha1.LinkActive,
		},
		UMAD: []string{umad},
	}
}

func ask(ports ...worker.Port) worker.Query {
	return worker.Query{Ports: ports, Topology: config.Default().Topology}
}

func TestLeafBehindEveryPortOfAHost(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 8, Rails: 8, PerUnit: 4, Spines: 2, Uplinks: 4}
	sim := fatTree(t, tree)
	const host = 5
	source := ib.New(func(umad string) (*ib.UMAD, error) {
		rail, err := strconv.Atoi(umad)
		if err != nil {
			return nil, err
		}
		return sim.Open(tree.HCA(host, rail))
	}, "", nil)
	var ports []worker.Port
	want := worker.Report{}
	for rail := range tree.Rails {
		p := port(tree.HCA(host, rail), strconv.Itoa(rail))
		leaf, n := tree.Leaf(host, rail)
		ports = append(ports, p)
		want.Links = append(want.Links, worker.Link{
			PortKey: p.Key(), Switch: v1alpha1.Switch{ID: leaf[2:], Name: tree.LeafName(host, rail)},
			SwitchPort: strconv.Itoa(n), Confidence: 100,
		})
	}
	if diff := cmp.Diff(want, source.Discover(t.Context(), ask(ports...))); diff != "" {
		t.Errorf("as built (-want +got):\n%s", diff)
	}

	// The cable of rail 3 goes to the leaf of rail 4, into port 40.
	wrong, _ := tree.Leaf(host, 4)
	if err := sim.Move(tree.HCA(host, 3), 1, wrong, 40); err != nil {
		t.Fatal(err)
	}
	right := want.Links[3]
	want.Links[3].Switch = v1alpha1.Switch{ID: wrong[2:], Name: tree.LeafName(host, 4)}
	want.Links[3].SwitchPort = "40"
	if diff := cmp.Diff(want, source.Discover(t.Context(), ask(ports...))); diff != "" {
		t.Errorf("cable moved (-want +got):\n%s", diff)
	}

	// Pulled out: the kernel would report that the port is down; a port that is
	// not yet known to be down has no answer.
	if err := sim.Move(tree.HCA(host, 3), 1, "", 0); err != nil {
		t.Fatal(err)
	}
	out := source.Discover(t.Context(), ask(ports[3]))
	if len(out.Links) != 0 || out.NoLink[ports[3].Key()] != worker.Unavailable || len(out.Skipped) != 1 {
		t.Errorf("cable out: %+v", out)
	}
	leaf, n := tree.Leaf(host, 3)
	if err := sim.Move(tree.HCA(host, 3), 1, leaf, n); err != nil {
		t.Fatal(err)
	}
	want.Links[3] = right
	if diff := cmp.Diff(want, source.Discover(t.Context(), ask(ports...))); diff != "" {
		t.Errorf("cable back (-want +got):\n%s", diff)
	}
}

func TestUplinksOfALeaf(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 4, Rails: 2, PerUnit: 4, Spines: 3, Uplinks: 2}
	sim := fatTree(t, tree)
	const host, rail = 2, 1
	changed := notify.New()
	source := ib.New(func(string) (*ib.UMAD, error) { return sim.Open(tree.HCA(host, rail)) }, "", changed)
	leaf, _ := tree.Leaf(host, rail)
	var want []v1alpha1.Uplink
	for s := range tree.Spines {
		for k := range tree.Uplinks {
			want = append(want, v1alpha1.Uplink{
				Leaf: leaf[2:], Port: int32(tree.PerUnit + s*tree.Uplinks + k + 1),
				Peer: tree.Spine(s)[2:], PeerName: fmt.Sprintf("spine%d", s), PeerPort: int32(rail*tree.Uplinks + k + 1),
			})
		}
	}
	q := ask(port("x", "u"))
	q.Leaves = []string{leaf[2:]}
	source.Discover(t.Context(), q)
	<-changed
	got := source.Discover(t.Context(), q)
	if diff := cmp.Diff(want, got.Uplinks); diff != "" || len(got.Skipped) != 0 {
		t.Errorf("skipped %v (-want +got):\n%s", got.Skipped, diff)
	}
}

// TestLossySwitch has a switch lose a third of the SMPs.
func TestLossySwitch(t *testing.T) {
	tree := ibsim.FatTree{Hosts: 2, Rails: 1, PerUnit: 2, Spines: 1, Uplinks: 1}
	sim := fatTree(t, tree)
	leaf, _ := tree.Leaf(0, 0)
	if _, err := sim.Command("Error %q 30", leaf); err != nil {
		t.Fatal(err)
	}
	source := ib.New(func(string) (*ib.UMAD, error) { return sim.Open(tree.HCA(0, 0)) }, "", nil)
	r := source.Discover(t.Context(), ask(port("x", "u")))
	if len(r.Links) != 1 || r.Links[0].Switch.ID != leaf[2:] {
		t.Errorf("%+v", r)
	}
}

// TestRealFabric asks every HCA of a public dump of a real NDR cluster for its
// switch.
func TestRealFabric(t *testing.T) {
	dir := os.Getenv("HEDDLE_FIXTURES")
	if dir == "" {
		t.Skip("HEDDLE_FIXTURES is not set")
	}
	dump := filepath.Join(dir, "ibnetdiscover-topograph-dgx-ndr-cluster.txt")
	want := cables(t, dump)
	sim := ibsim.Run(t, dump)
	hcas := make([]string, 0, len(want))
	for hca := range want {
		hcas = append(hcas, hca)
	}
	slices.Sort(hcas)
	source := ib.New(sim.Open, "", nil)
	answers, mismatches := 0, 0
	began := time.Now()
	for batch := range slices.Chunk(hcas, ibsim.MaxClients-2) {
		var ports []worker.Port
		for _, hca := range batch {
			p := port(hca, hca)
			p.Port = int32(want[hca].from)
			ports = append(ports, p)
		}
		r := source.Discover(t.Context(), ask(ports...))
		for _, s := range r.Skipped {
			t.Errorf("%s: %s", s.Name, s.Reason)
		}
		answers += len(r.Links)
		for _, e := range r.Links {
			w := want[e.ID]
			if e.Switch.ID != w.guid || e.SwitchPort != w.port || e.Switch.Name != w.name {
				mismatches++
				t.Errorf("%s is on %+v port %s, the dump has %+v", e.ID, e.Switch, e.SwitchPort, w)
			}
		}
	}
	t.Logf("%d HCAs, %d answers, %d mismatches in %s", len(hcas), answers, mismatches, time.Since(began).Round(time.Millisecond))
	if len(hcas) != 582 || answers != 582 {
		t.Errorf("%d answers of %d HCAs, want 582 of 582", answers, len(hcas))
	}
}

type end struct {
	from             int
	guid, port, name string
}

// cables reads the far end of every HCA's cable out of ibnetdiscover's output.
func cables(t *testing.T, dump string) map[string]end {
	t.Helper()
	f, err := os.Open(dump)
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	node := regexp.MustCompile(`^Ca\s+\d+ "(H-[0-9a-f]+)"`)
	link := regexp.MustCompile(`^\[(\d+)\]\([0-9a-f]+\)\s+"S-([0-9a-f]+)"\[(\d+)\]`)
	sw := regexp.MustCompile(`^Switch\s+\d+ "S-([0-9a-f]+)"\s+# "([^"]*)"`)
	all, names, hca := map[string]end{}, map[string]string{}, ""
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if strings.TrimSpace(line) == "" {
			hca = ""
		}
		if m := sw.FindStringSubmatch(line); m != nil {
			names[m[1]] = m[2]
		}
		if m := node.FindStringSubmatch(line); m != nil {
			hca = m[1]
		}
		if m := link.FindStringSubmatch(line); m != nil && hca != "" {
			from, _ := strconv.Atoi(m[1])
			all[hca] = end{from: from, guid: m[2], port: m[3]}
		}
	}
	for id, e := range all {
		e.name = names[e.guid]
		all[id] = e
	}
	return all
}
