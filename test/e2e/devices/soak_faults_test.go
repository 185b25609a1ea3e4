//go:build e2e && linux

package devices

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// soakFault is something that is done to the node, and undone before it returns.
type soakFault struct {
	name string
	do   func(*soak, *testing.T, *rand.Rand)
	// except is what else may happen meanwhile.
	except exception
	// counted lets everything come to rest after it, as every fifth step does.
	counted bool
}

type exception int

const (
	// noAnswers of the API server.
	noAnswers exception = iota + 1
	// drift: the plugin reports annotations that are not its own.
	drift
)

// soakFaults are all: a soak has each once before it has one twice. Another one changes what
// a seed does, also that of make e2e.
func soakFaults() []soakFault {
	return []soakFault{
		{name: "kill one daemon", do: killDaemons(1)},
		{name: "kill several daemons", do: killDaemons(3)},
		{name: "kill all daemons", do: killDaemons(5)},
		{name: "kill kubelet", do: killComponents("kubelet")},
		{name: "kill containerd", do: killComponents("containerd")},
		{name: "kill API server", do: killComponents("kube-apiserver"), except: noAnswers},
		{name: "kill kubelet and containerd", do: killComponents("kubelet", "containerd")},
		{name: "kill kubelet and plugin", do: killWithPlugin("kubelet")},
		{name: "kill kubelet and plugin again and again", do: killAgain, counted: true},
		{name: "kill containerd and plugin", do: killWithPlugin("containerd")},
		{name: "state directory full", do: fullState},
		{name: "freeze daemons", do: freeze},
		{name: "429", do: api(apiBusy)},
		{name: "watches expire", do: api(apiExpired)},
		{name: "API server silent", do: api(apiSilent)},
		{name: "connections drop", do: dropConnections},
		{name: "forged annotations of pods", do: forgePods, except: drift},
		{name: "forged Node", do: forgeNode},
		{name: "GPUs to claims and back", do: claimsAndBack, counted: true},
	}
}

func upTo(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(most)))
}

// some are n of all, in any order.
func (s *soak) some(random *rand.Rand, n int) (daemons []*daemon) {
	for _, i := range random.Perm(len(s.daemons))[:min(n, len(s.daemons))] {
		daemons = append(daemons, s.daemons[i])
	}
	return daemons
}

// killDaemons kills so many, leaves them dead for a moment and starts them in any order.
func killDaemons(n int) func(*soak, *testing.T, *rand.Rand) {
	return func(s *soak, t *testing.T, random *rand.Rand) {
		victims := s.some(random, n)
		for _, d := range victims {
			t.Logf("kill -9 %s", d.name)
			d.kill(t)
		}
		pause(t, upTo(random, 2*time.Second))
		for _, d := range victims {
			if err := d.start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (s *soak) startComponent(t *testing.T, component string) {
	t.Helper()
	start := map[string]func(context.Context) error{
		"kubelet": s.StartKubelet, "containerd": s.StartContainerd, "kube-apiserver": s.StartAPIServer,
	}[component]
	// Again and again, as systemd does: a kubelet that meets containerd before its CRI plugin ends.
	eventually(t, func() string {
		if err := start(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	})
}

func killComponents(components ...string) func(*soak, *testing.T, *rand.Rand) {
	return func(s *soak, t *testing.T, random *rand.Rand) {
		for _, c := range components {
			s.killComponent(t, c)
		}
		pause(t, upTo(random, 2*time.Second))
		// containerd first: a kubelet without it ends.
		for _, c := range slices.Backward(components) {
			s.startComponent(t, c)
		}
	}
}

// killWithPlugin kills both; either may be back first.
func killWithPlugin(component string) func(*soak, *testing.T, *rand.Rand) {
	return func(s *soak, t *testing.T, random *rand.Rand) {
		s.plugin.kill(t)
		s.killComponent(t, component)
		pause(t, upTo(random, 2*time.Second))
		first := random.IntN(2) == 0
		if first {
			s.revivePlugin(t)
		}
		s.startComponent(t, component)
		s.revivePlugin(t)
	}
}

// killAgain kills plugin, kubelet or both again and again, leaves them dead for a moment, and waits for neither
// to serve.
func killAgain(s *soak, t *testing.T, random *rand.Rand) {
	kills := 0
	for end := time.Now().Add(againFor); time.Now().Before(end); kills++ {
		pause(t, upTo(random, 5*time.Second))
		victim := random.IntN(4) // 0 and 1 the plugin, 2 the kubelet, 3 both
		if victim != 2 {
			s.plugin.kill(t)
		}
		if victim >= 2 {
			s.killComponent(t, "kubelet")
		}
		pause(t, upTo(random, 1500*time.Millisecond))
		if random.IntN(2) == 0 {
			s.revivePlugin(t)
		}
		if victim >= 2 {
			if err := s.StartKubelet(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		s.revivePlugin(t)
	}
	t.Logf("%d kills", kills)
}

// fullState fills the device plugin's state directory.
func fullState(s *soak, t *testing.T, random *rand.Rand) {
	filler := filepath.Join(s.stateDir(), "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for block := 64 << 10; block > 0; {
		if _, err = f.Write(make([]byte, block)); err != nil {
			block /= 2
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the state directory is not full: %v", err)
	}
	_ = f.Close() // There is no room for what it lacks.
	if random.IntN(2) == 0 {
		s.plugin.kill(t)
		s.revivePlugin(t)
	}
	pause(t, 2*time.Second+upTo(random, 3*time.Second))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
}

// freeze stops daemons as a machine does that is suspended: when they go on,
// all clocks have jumped, and every timer is due.
func freeze(s *soak, t *testing.T, random *rand.Rand) {
	victims := s.some(random, 1+random.IntN(len(s.daemons)))
	for _, d := range victims {
		d.signal(t, unix.SIGSTOP)
	}
	// heddle-scheduler that cannot renew its lease for 10 s ends, as kube-scheduler does.
	pause(t, 2*time.Second+upTo(random, 2*time.Second))
	for _, d := range victims {
		d.signal(t, unix.SIGCONT)
	}
}

// api has the gateway fail for a time. Half of the times daemons that run then start in it.
func api(mode int32) func(*soak, *testing.T, *rand.Rand) {
	return func(s *soak, t *testing.T, random *rand.Rand) {
		faults := s.gateway.faults.Load()
		s.gateway.mode.Store(mode)
		s.gateway.drop()
		if random.IntN(2) == 0 {
			for _, d := range s.some(random, 2) {
				t.Logf("%s starts meanwhile", d.name)
				d.kill(t)
				if err := d.start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		pause(t, 2*time.Second+upTo(random, 2*time.Second))
		s.gateway.mode.Store(apiServes)
		s.gateway.drop() // Who waits for an answer gets one.
		if n := s.gateway.faults.Load() - faults; n == 0 {
			t.Error("no request met the fault")
		} else {
			t.Logf("%d requests met it", n)
		}
	}
}

func dropConnections(s *soak, t *testing.T, random *rand.Rand) {
	for range 5 {
		s.gateway.drop()
		pause(t, upTo(random, time.Second))
	}
}

// forgePods writes heddle's annotations on pods that run, as their owners could
// without the chart's policies.
func forgePods(s *soak, t *testing.T, random *rand.Rand) {
	all := s.consumers(t)
	for i, name := range sortedKeys(all) {
		if i%2 == 1 {
			continue
		}
		gpu := s.gpuAt(t, random.IntN(8))
		forged := allocation.Bound{Version: 1, Node: s.Node(), Containers: map[string]allocation.Sharing{
			"app": {Shares: []allocation.Share{{UUID: gpu, VCore: 100, MemoryMiB: 79 << 10}}},
		}}
		text := []string{forged.String(), "", "{", strings.Repeat("x", 100_000)}[random.IntN(4)]
		if err := s.annotatePod(t.Context(), name, map[string]string{wellknown.SGPUBound: text, wellknown.SGPUAllocation: text}); err != nil {
			t.Log(err) // It may be gone.
		}
	}
	pause(t, time.Second)
}

// forgeNode writes what heddle's daemons write on the Node, as a stolen token could.
func forgeNode(s *soak, t *testing.T, random *rand.Rand) {
	n := s.node(t)
	labels := map[string]any{}
	for _, k := range sortedKeys(s.labels) {
		if strings.Contains(k, "nvidia.com/") || strings.Contains(k, "heddle.dev/") {
			labels[k] = []any{"evil", nil}[random.IntN(2)]
		}
	}
	annotations := map[string]any{wellknown.SharedGPUs: []any{"{", nil}[random.IntN(2)]}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": annotations}, "spec": map[string]any{"taints": nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d labels, %d taints", len(labels), len(n.Spec.Taints))
	_, err = s.client.CoreV1().Nodes().Patch(t.Context(), s.Node(), types.MergePatchType, body, metav1.PatchOptions{FieldManager: "evil"})
	if err != nil {
		t.Fatal(err)
	}
}
