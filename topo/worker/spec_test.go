package worker

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/test/machines"
)

var update = flag.Bool("update", false, "write testdata")

// TestMachines shows what is published of every machine file, without cables.
func TestMachines(t *testing.T) {
	const file = "testdata/machines.txt"
	var b strings.Builder
	for _, name := range machines.Names(t) {
		m := machines.Load(t, name)
		topology := config.Default().Topology
		in := input{machine: m, topology: &topology, before: &v1alpha1.NodeTopologySpec{}}
		in.ports, in.omitted = Ports(m, nil)
		spec := merge(in)
		fmt.Fprintf(&b, "%s: %v %s\n", name, spec.Accelerators, spec.NVLinkDomain)
		for _, s := range spec.Skipped {
			fmt.Fprintf(&b, "  skipped %s: %s\n", s.Name, s.Reason)
		}
		for i := range spec.Rails {
			r := &spec.Rails[i]
			fmt.Fprintf(&b, "  %s %d.%d %s port %d %s, %s %s %d Gb/s, %d GPUs\n", r.Role, r.Rail, r.Plane, r.HCA, r.Port,
				r.Netdev, r.LinkLayer, r.LinkState, r.RateGbps, len(r.GPUs))
		}
	}
	golden.Compare(t, file, b.String(), *update)
}

func TestNVLinkDomain(t *testing.T) {
	fabric := func(cluster string, clique uint32, state string) machine.GPU {
		return machine.GPU{Fabric: &machine.Fabric{ClusterUUID: cluster, CliqueID: clique, State: state}}
	}
	const done = machine.FabricCompleted
	for _, tt := range []struct {
		name          string
		gpus          []machine.GPU
		domain, fault string
	}{
		{"none", []machine.GPU{{}}, "", ""},
		{"all in one", []machine.GPU{fabric("a-1", 2, done), fabric("a-1", 2, done)}, "a-1.2", ""},
		{"one is lost", []machine.GPU{fabric("a-1", 2, done), {}}, "a-1.2", ""},
		{"one is not there yet", []machine.GPU{fabric("a-1", 2, done), fabric("a-1", 2, machine.FabricInProgress)}, "a-1.2", ""},
		{"its own", []machine.GPU{fabric("00000000-0000-0000-0000-000000000000", 0, done)}, "", ""},
		{"two cliques", []machine.GPU{fabric("a-1", 2, done), fabric("a-1", 3, done)}, "", "the GPUs are in different cliques"},
		{"too long", []machine.GPU{fabric(strings.Repeat("a", 200), 2, done)}, "", "an NVLink domain of 202 bytes"},
	} {
		if domain, fault := nvlinkDomain(&machine.Machine{GPUs: tt.gpus}); domain != tt.domain || fault != tt.fault {
			t.Errorf("%s: %q, %q", tt.name, domain, fault)
		}
	}
}

// A worker that starts under a release of the driver reports what is published.
func TestGPUsStayUnderARelease(t *testing.T) {
	before := v1alpha1.NodeTopologySpec{
		NVLinkDomain: "a-1.2", Accelerators: []v1alpha1.Accelerator{{Product: "NVIDIA-GB200", Count: 4}},
	}
	topology := config.Default().Topology
	for state, want := range map[machine.ProbeState]v1alpha1.NodeTopologySpec{
		machine.ProbeReleased: before, machine.ProbeAbsent: {},
	} {
		m := &machine.Machine{Probes: []machine.Probe{{Name: "nvml", State: state}}}
		got := merge(input{machine: m, topology: &topology, before: &before})
		if diff := cmp.Diff(want.Accelerators, got.Accelerators); diff != "" || got.NVLinkDomain != want.NVLinkDomain {
			t.Errorf("%s: domain %q; accelerators (-want +got):\n%s", state, got.NVLinkDomain, diff)
		}
	}
}

func TestMergeEnds(t *testing.T) {
	key := PortKey{ID: "0000:18:00.0", Port: 1}
	port := Port{Rail: v1alpha1.Rail{
		ID: key.ID, Port: key.Port, HCA: "mlx5_0", GUID: "g", Role: "fabric", LinkState: v1alpha1.LinkActive,
	}}
	end := func(id, name string, confidence int32) []Link {
		return []Link{{PortKey: key, Switch: v1alpha1.Switch{ID: id, Name: name}, SwitchPort: "8", Confidence: confidence}}
	}
	without := func(a Absence) Report { return Report{NoLink: map[PortKey]Absence{key: a}} }
	known := func(source v1alpha1.Source, guid string) []v1alpha1.Rail {
		return []v1alpha1.Rail{{
			ID: key.ID, Port: 1, GUID: guid, Switch: &v1alpha1.Switch{ID: "old"}, SwitchPort: "1", Source: source, Confidence: 100,
		}}
	}
	const ib, static = v1alpha1.SourceIB, v1alpha1.SourceStatic
	var director Report
	director.Enter(&Query{Ports: []Port{port}}, static, &Place{Rails: []v1alpha1.Rail{
		{Switch: &v1alpha1.Switch{ID: "b1", Name: "MF0;director:CS8500/L07/U1"}, SwitchPort: "8"},
	}}, 80)
	for _, tt := range []struct {
		name    string
		answers []answer
		before  []v1alpha1.Rail
		want    string
		skipped string
	}{
		{name: "no source knows", want: "- 0"},
		{name: "the switch itself", answers: []answer{{ib, Report{Links: end("2c5e", "leaf", 100)}}}, want: "ib 2c5e 8 100"},
		{
			name: "a file agrees, by name", want: "ib 2c5e 8 100",
			answers: []answer{{ib, Report{Links: end("2c5e", "Leaf-1", 100)}}, {static, Report{Links: end("leaf-1", "", 80)}}},
		},
		{
			name: "a file agrees, spelled otherwise", want: "lldp 02:00:00:00:ee:0a 8 100",
			answers: []answer{{v1alpha1.SourceLLDP, Report{Links: end("02:00:00:00:ee:0a", "", 100)}}, {static, Report{Links: end("0200.0000.EE0A", "", 80)}}},
		},
		{
			name: "a file agrees, which names the board of a director", want: "ib b83f 8 100",
			answers: []answer{{ib, Report{Links: end("b83f", "MF0;director:CS8500", 100)}}, {static, director}},
		},
		{
			name: "a file has another value", want: "ib 2c5e 8 70",
			answers: []answer{{ib, Report{Links: end("2c5e", "", 100)}}, {static, Report{Links: end("leaf-1", "", 80)}}},
			skipped: "mlx5_0 port 1: static reports leaf-1, but ib reports 2c5e and takes precedence",
		},
		{name: "only a file", answers: []answer{{ib, Report{}}, {static, Report{Links: end("leaf-1", "", 80)}}}, want: "static leaf-1 8 80"},
		{name: "cannot see it now", answers: []answer{{ib, without(Unavailable)}}, before: known(ib, "g"), want: "ib old 1 50"},
		{name: "an answer may still come", answers: []answer{{ib, without(Pending)}}, before: known(ib, "g"), want: "ib old 1 100"},
		{name: "there is none any more", answers: []answer{{ib, Report{}}}, before: known(ib, "g"), want: "- 0"},
		{name: "another HCA in the slot", answers: []answer{{ib, without(Unavailable)}}, before: known(ib, "other"), want: "- 0"},
		{name: "another source knew", answers: []answer{{ib, without(Unavailable)}}, before: known(static, "g"), want: "- 0"},
		{
			name: "not now, but a file knows", answers: []answer{{ib, without(Unavailable)}, {static, Report{Links: end("leaf-1", "", 80)}}}, before: known(ib, "h"),
			want: "static leaf-1 8 80",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := merge(input{
				machine: &machine.Machine{}, topology: &config.Topology{}, ports: []Port{port}, answers: tt.answers,
				before: &v1alpha1.NodeTopologySpec{Rails: tt.before},
			})
			r := spec.Rails[0]
			got := fmt.Sprintf("- %d", r.Confidence)
			if r.Switch != nil {
				got = fmt.Sprintf("%s %s %s %d", r.Source, r.Switch.ID, r.SwitchPort, r.Confidence)
			}
			skipped := ""
			for _, s := range spec.Skipped {
				skipped += s.Name + ": " + s.Reason
			}
			if got != tt.want || skipped != tt.skipped {
				t.Errorf("%q, skipped %q\nwant %q, %q", got, skipped, tt.want, tt.skipped)
			}
		})
	}
}

func TestMergePath(t *testing.T) {
	a, b := []string{"switchbox-1", "dragonfly-2"}, []string{"switchbox-9", "dragonfly-9"}
	const static, manager = v1alpha1.SourceStatic, v1alpha1.SourceClusterManager
	for _, tt := range []struct {
		name    string
		answers []answer
		before  v1alpha1.NodeTopologySpec
		want    v1alpha1.NodeTopologySpec
	}{
		{name: "no source", answers: []answer{{static, Report{}}, {manager, Report{}}}},
		{
			name: "the manager", answers: []answer{{static, Report{}}, {manager, Report{Path: a}}},
			want: v1alpha1.NodeTopologySpec{Path: a, PathSource: manager},
		},
		{
			name: "a file differs from the manager", answers: []answer{{static, Report{Path: a}}, {manager, Report{Path: b}}},
			want: v1alpha1.NodeTopologySpec{Path: a, PathSource: static, Skipped: []v1alpha1.Skipped{{
				Name: "cluster-manager", Reason: "reports switchbox-9/dragonfly-9, but static reports switchbox-1/dragonfly-2 and takes precedence",
			}}},
		},
		{
			name: "the manager has not answered since the start", answers: []answer{{manager, Report{NoPath: Pending}}},
			before: v1alpha1.NodeTopologySpec{Path: a, PathSource: manager},
			want:   v1alpha1.NodeTopologySpec{Path: a, PathSource: manager},
		},
		{
			name: "the manager knows the node no more", answers: []answer{{manager, Report{}}},
			before: v1alpha1.NodeTopologySpec{Path: a, PathSource: manager},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := merge(input{machine: &machine.Machine{}, topology: &config.Topology{}, answers: tt.answers, before: &tt.before})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGroupsOfLabels(t *testing.T) {
	labels := map[string]string{"topology.kubernetes.io/zone": "z1", "example.com/rack": "r7", "example.com/row": ""}
	for _, tt := range []struct {
		name string
		keys []config.LabelKey
		want []string
	}{
		{"none configured", nil, nil},
		{"top first", []config.LabelKey{"topology.kubernetes.io/zone", "example.com/rack"}, []string{"z1", "r7"}},
		{"a level that the Node lacks", []config.LabelKey{"example.com/hall", "example.com/row", "example.com/rack"}, []string{"r7"}},
	} {
		q := Query{Labels: labels, Topology: config.Topology{PathLabels: tt.keys}}
		if diff := cmp.Diff(Report{Path: tt.want}, NodeLabels{}.Discover(t.Context(), q)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
