package publish

import (
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/state"
)

var update = flag.Bool("update", false, "write testdata")

const (
	gpus  = "nvidia.com/gpu"
	hcas  = "rdma/hca_shared_devices_ib"
	slots = "nvidia.com/sgpu"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// scene is a node to make a Round of.
type scene struct {
	machine *machine.Machine
	config  config.NodeConfig
	// sick are GPUs by index, down HCAs by name; gone are HCAs that the machine has no more.
	sick map[int]health.State
	down map[string]health.State
	// modes is keyed by index; the other GPUs are as configured.
	modes map[int]gpumode.GPU
	gone  map[string]string
	state func(*inventory.Inventory) *inventory.Inventory
	round func(*Round)
}

func newScene(t *testing.T, name, text string) *scene {
	t.Helper()
	loaded, err := config.Parse(map[string][]byte{"version": []byte("v1"), "cluster-config": []byte(text)}, config.Uncompiled{})
	if err != nil {
		t.Fatal(err)
	}
	m := machines.Load(t, name)
	return &scene{machine: m, config: loaded.Cluster.For(m)}
}

// make makes the Round of a scene, with every GPU resource served.
func (s *scene) make(t *testing.T) *Round {
	t.Helper()
	m, c := s.machine, &s.config
	found := &health.Snapshot{Machine: m, GPUs: map[string]health.State{}, HCAs: map[string]health.State{}}
	modes, states, unhealthy := []gpumode.GPU{}, map[string]inventory.GPU{}, map[string]string{}
	for i := range m.GPUs {
		wanted := inventory.Wanted(c, &m.GPUs[i])
		mode, moves := s.modes[i]
		if !moves {
			mode = gpumode.GPU{GPU: report.GPU{Mode: string(wanted)}, Offered: wanted}
		}
		mode.Index, mode.UUID, mode.Wanted = m.GPUs[i].Index, m.GPUs[i].UUID, string(wanted)
		modes = append(modes, mode)
		h, sick := s.sick[i]
		if !sick {
			h = health.State{Healthy: true, Since: now.Add(-time.Hour)}
		}
		h.Name = fmt.Sprintf("GPU %d (%s, %s)", mode.Index, m.GPUs[i].PCI, mode.UUID)
		found.GPUs[mode.UUID] = h
		states[mode.UUID] = inventory.GPU{
			Mode: mode.Offered, Unavailable: mode.Unavailable, Draining: mode.Draining, Unhealthy: h.Reason,
		}
	}
	for i, id := range m.HCAIDs() {
		found.HCAs[id] = health.State{Healthy: true}
		if h, down := s.down[m.HCAs[i].Name]; down {
			found.HCAs[id], unhealthy[m.HCAs[i].Name] = h, h.Reason
		}
	}
	inv := inventory.New(m, c, states, unhealthy)
	if s.state != nil {
		inv = s.state(inv)
	}
	r := &Round{
		Node: "gpu-1", Vendors: host.Vendors(), Inventory: inv, Health: found, Modes: modes, Wanted: resource.GPUNames(inv),
		Served: map[string]Served{}, Usage: Usage{At: now, NodeKnown: true, Holders: map[string]map[string]bool{}},
	}
	for _, name := range r.Wanted {
		options := resource.Options{Name: name, State: state.New(t, t.TempDir(), inv)}
		r.Served[name] = Served{Kind: cdi.GPU, GPUs: resource.NewGPUs(resource.GPUOptions{Options: options, Vendors: r.Vendors}, inv).Snapshot()}
	}
	for i := range c.RDMA.Resources {
		r.Wanted = append(r.Wanted, c.RDMA.Resources[i].Name)
		r.Served[c.RDMA.Resources[i].Name] = Served{Kind: cdi.RDMA}
	}
	if len(inv.Shared) > 0 {
		r.Wanted, r.Served[slots] = append(r.Wanted, slots), Served{Kind: cdi.SGPU}
	}
	for id := range s.gone {
		found.HCAs[id] = health.State{Cause: health.Gone, Reason: "it is gone"}
	}
	r.Seen = r.See(map[string]map[string]string{hcas: s.gone})
	for _, name := range r.gpuResources() {
		r.Usage.Holders[name] = map[string]bool{}
	}
	if s.round != nil {
		s.round(r)
	}
	return r
}

func lost(since time.Duration) health.State {
	return health.State{Cause: health.Lost, Reason: "fell off the bus", Since: now.Add(-since)}
}

func pod(name, controller string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Status.Phase = "default", name, types.UID(name), corev1.PodPending
	if controller != "" {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: controller, Name: "owner", UID: "owner", Controller: new(true)}}
	}
	return p
}

// faulty has a GPU that two pods have a part in, which is lost for a minute.
func faulty(t *testing.T, policy string, more func(*Round)) *scene {
	t.Helper()
	s := newScene(t, "dgx-h100", "health: {remediation: "+policy+", remediateAfter: 30s}")
	s.sick = map[int]health.State{3: lost(time.Minute)}
	s.round = func(r *Round) {
		for _, name := range []string{"deployed", "bare"} {
			r.Usage.Containers = append(r.Usage.Containers, report.Binding{
				Namespace: "default", Pod: name, Container: "main", GPUs: []string{r.Inventory.Machine.GPUs[3].UUID},
			})
		}
		r.Usage.Pods = []*corev1.Pod{pod("deployed", "Job"), pod("bare", "")}
		if more != nil {
			more(r)
		}
	}
	return s
}

func scenes(t *testing.T) map[string]*scene {
	t.Helper()
	all := map[string]*scene{
		"well":       newScene(t, "dgx-h100", ""),
		"nothing":    newScene(t, "soft-rdma-only", ""),
		"cpu":        newScene(t, "amd-epyc-no-gpu", "mode: sgpu"),
		"hca-counts": newScene(t, "one-dead-port", "rdma: {resources: [{name: rdma/a}, {name: rdma/b, count: strict}, {name: rdma/c, count: all}]}"),
		"two-makers": newScene(t, "two-makers", "domains: {vendor: auto}"),
		"one-shared": newScene(t, "two-makers", "domains: {vendor: auto}\nmode: sgpu"),
		"shared":     newScene(t, "dgx-h100", "mode: sgpu"),
		"cordon":     faulty(t, "cordon", nil),
		"drain":      faulty(t, "drain", nil),
		"drained": faulty(t, "drain", func(r *Round) {
			r.Usage.Tainted, r.Usage.Containers = true, nil
		}),
		"none": faulty(t, "none", func(r *Round) { r.Usage.Tainted = true }),
	}
	s := newScene(t, "amd-epyc-no-gpu", "")
	s.machine.PCI = append(s.machine.PCI, machine.PCIFunction{Address: "0000:18:00.0", Class: "0x030200", Vendor: "0x10de"})
	all["gpu-without-driver"] = s
	s = newScene(t, "soft-rdma-only", "")
	s.machine.HCAs = nil
	all["without-hcas"] = s
	s = newScene(t, "soft-rdma-only", "")
	s.machine.HCAs = machines.Load(t, "amd-epyc-no-gpu").HCAs // For management alone.
	all["management-hcas"] = s
	s = newScene(t, "soft-rdma-only", "")
	s.machine.HCAs = nil
	s.machine.PCI = append(s.machine.PCI, machine.PCIFunction{Address: "0000:18:00.0", Class: "0x020700", Vendor: "0x15b3"})
	all["hca-without-driver"] = s
	s = newScene(t, "dgx-h100", "health: {remediation: cordon, remediateAfter: 1h}")
	s.sick = map[int]health.State{3: {Healthy: true, Since: now.Add(-time.Minute)}}
	s.round = func(r *Round) { r.Usage.Tainted = true }
	all["recovering"] = s
	s = newScene(t, "dgx-h100", "")
	s.round = func(r *Round) {
		for i := range 6 {
			r.Usage.Holders[gpus][r.Inventory.Machine.GPUs[i].UUID] = true
		}
		r.Served[hcas] = Served{Kind: cdi.RDMA}
		owned := r.Served[gpus]
		owned.Status.Owner = "nvidia-device-plugin"
		r.Served[gpus] = owned
	}
	s.down = map[string]health.State{s.machine.HCAs[0].Name: {Cause: health.PortDown, Reason: "no port is active"}}
	s.gone = map[string]string{"0000:ff:00.0": "mlx5_99"}
	all["in-use"] = s
	s = newScene(t, "dgx-h100", "mode: sgpu\nsgpu: {gpus: [0, 1]}")
	s.modes = map[int]gpumode.GPU{
		0: {
			GPU:     report.GPU{Mode: "native", Until: "ml/train ends"},
			Offered: "native", Unavailable: "moves to sgpu when ml/train ends", Draining: true,
		},
		1: {GPU: report.GPU{Mode: "sgpu", Cordoned: true}, Offered: "sgpu", Unavailable: gpumode.Cordoned},
	}
	all["modes"] = s
	s = newScene(t, "dgx-h100", "")
	request := release.Request{Until: now.Add(time.Hour), GPUs: []string{s.machine.GPUs[2].UUID}}
	s.sick = map[int]health.State{2: {Healthy: true, Reason: release.Reason}}
	s.round = func(r *Round) {
		r.Release = request
		r.Usage.Release = &release.Status{Request: request, Message: "the kubelet still offers 1 of the GPUs"}
	}
	all["released"] = s
	s = newScene(t, "dgx-h100", "mode: sgpu\nsgpu: {gpus: [0]}")
	s.round = func(r *Round) { r.WithoutShares = "--device-list-strategy is envvar" }
	all["without-cdi"] = s
	s = newScene(t, "dgx-h100", "")
	s.state = func(inv *inventory.Inventory) *inventory.Inventory {
		return inv.AllUnavailable("no space left on device")
	}
	all["unwritable"] = s
	failing := breaker.State{Failed: 3, Last: breaker.Failure{Pod: "team/c", Reason: "Allocate failed"}}
	probed := failing.Withdraw(now, "")
	probed.Phase, probed.Probed = breaker.Probing, true
	for name, state := range map[string]breaker.State{
		"withdrawn": failing.Withdraw(now, ""), "kept": failing.Withdraw(now, "1 of 10 nodes are withdrawn"), "probed": probed,
	} {
		s = newScene(t, "dgx-h100", "")
		s.round = func(r *Round) { r.Rejects, r.Usage.NodeKnown = state, true }
		if state.Phase == breaker.Withdrawn {
			s.state = func(inv *inventory.Inventory) *inventory.Inventory { return inv.AllUnavailable(state.String()) }
		}
		all[name] = s
	}
	return all
}

// text is a Status, and the shortages that it is made of, as testdata has it.
func text(r *Round, s *Status) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, one := range Shortages(r) {
		add("unavailable %d of %s, %s: %s", one.Count, one.Resource, one.Cause, one.Message)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Notices)) {
		add("event %s warning=%t: %s", s.Notices[name].Reason, s.Notices[name].Warning, s.Notices[name].Message)
	}
	for _, c := range s.Conditions {
		add("condition %s=%t %s: %s", c.Type, c.True, c.Reason, c.Message)
	}
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		add("annotation %s=%s", key, s.Annotations[key])
	}
	if cordon, known := s.Taints[wellknown.UnhealthyGPU]; known {
		add("taint %t", cordon)
	}
	if s.Taints[wellknown.RejectsPods] {
		add("taint %s", wellknown.RejectsPods)
	}
	for _, p := range s.Evict {
		add("evict %s: %s", p.Name, s.EvictReason)
	}
	return strings.Join(lines, "\n") + "\n"
}

func TestDesired(t *testing.T) {
	for name, s := range scenes(t) {
		t.Run(name, func(t *testing.T) {
			r := s.make(t)
			status := Desired(r)
			got, path := text(r, status), filepath.Join("testdata", name+".txt")
			golden.Compare(t, path, got, *update)
			if diff := cmp.Diff(status, Desired(r)); diff != "" {
				t.Errorf("a second call differs:\n%s", diff)
			}
		})
	}
}

// TestSeen: a device that fell off the bus is missed until health forgets it.
func TestSeen(t *testing.T) {
	s := newScene(t, "dgx-h100", "")
	first := s.make(t)
	at := slices.IndexFunc(s.machine.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
	id, name := s.machine.HCAIDs()[at], s.machine.HCAs[at].Name
	s.machine.HCAs = slices.Delete(slices.Clone(s.machine.HCAs), at, at+1)
	s.gone = first.Seen[hcas]
	next := s.make(t)
	next.Health.HCAs = map[string]health.State{id: {Cause: health.Gone, Reason: "it is gone"}}
	if got := next.See(first.Seen)[hcas]; got[id] != name {
		t.Errorf("%s is not missed: %v", name, got)
	}
	next.Health.HCAs = nil
	if got := next.See(first.Seen)[hcas]; got[id] != "" {
		t.Errorf("%s is missed although health has forgotten it", name)
	}
}
