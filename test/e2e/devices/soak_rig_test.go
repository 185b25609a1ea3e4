//go:build e2e && linux

package devices

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/test/install"
	"github.com/heddle-dev/heddle/test/programtest"
)

// soak is a node with all of heddle's daemons, which reach the API server
// through a gateway that fails on demand.
type soak struct {
	*rig
	net     *nodeNet
	gateway *gateway
	// daemons are all; the first is the device plugin.
	daemons []*daemon
	// pods counts those that came and went; problem is the last error of the API server in a step, if there was one.
	pods    atomic.Int64
	problem atomic.Pointer[error]

	// What must be after each step as it was before the first.
	running map[string]string
	records map[string][]allocation.Share
	labels  map[string]string
	taints  []corev1.Taint
	used    map[string]use
	// looked are the containers that were looked at in any step.
	looked map[string]bool
}

const schedulerDaemon = "heddle-scheduler"

// soakState is how large the state directory of a soak is.
const soakState = "16m"

// soakConfig takes labels back that others write, and has a taint, a place in the fabric, and a GPU for claims.
const soakConfig = sharedGPUs + `usage: training
labelConflict: force
topology: {staticFile: %q}
` + oneClaimed

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{rig: newRig(t, options{name: "soak", config: sharedGPUs, stateSize: soakState, held: true})}
	fabric := filepath.Join(s.dir, "fabric.yaml")
	place := "version: v1\nnodes:\n  " + s.Node() + ": {path: [switchbox-1, dragonfly-1], rails: {0: leaf-a}}\n"
	if err := os.WriteFile(fabric, []byte(place), 0o600); err != nil {
		t.Fatal(err)
	}
	s.configure(t, fmt.Sprintf(soakConfig, fabric))
	var err error
	if s.net, err = s.network(); err != nil {
		t.Fatal(err)
	}
	listener, err := s.net.listen()
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if s.gateway, err = newGateway(listener, config, s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.gateway.close(); err != nil {
			t.Error(err)
		}
	})
	s.programs(t)
	for _, d := range s.daemons {
		if err := d.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of %s:\n%s", d.name, tail(d.log.String(), 4000))
			}
			if err := d.stop(s.ctx(t)); err != nil {
				t.Errorf("%s: %v", d.name, err)
			}
		})
	}
	s.serving(t)
	s.waitShares(t, soakSlots, soakCores, soakGiB)
	s.waitClaimable(t, 1)
	return s
}

// programs builds all daemons and gives each its flags.
func (s *soak) programs(t *testing.T) {
	t.Helper()
	b, err := builds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in := b.installer
	if err := in.BuildAll(t.Context(), "heddle-topo-master", "heddle-scheduler"); err != nil {
		t.Fatal(err)
	}
	s.topologyCRD(t)
	api := []string{"--kubeconfig", s.gateway.kubeconfig}
	if err := s.Apply(t.Context(), claimClasses()+shareTemplate); err != nil {
		t.Fatal(err)
	}
	s.plugin.extra = append(slices.Clone(api), "--claims-dir", "/var/lib/kubelet/plugins/"+claims.Driver)
	s.daemons = []*daemon{{process: s.plugin, name: "heddle-device-plugin", url: "http://127.0.0.1:9102"}}
	add := func(name, binary, subcommand, url string, args ...string) {
		s.daemons = append(s.daemons, &daemon{name: name, url: url, process: &process{
			rig: s.rig, binary: binary, daemon: subcommand, log: &journal{}, args: append(args, api...),
		}})
	}
	host := []string{"--node-name", s.Node(), "--machine", s.machineFile(), "--config", filepath.Join(s.dir, "config")}
	add("heddle-feature-discovery", b.node, labelerDaemon, "http://127.0.0.1:9101", host...)
	add("heddle-topo-worker", b.node, workerDaemon, "http://127.0.0.1:9103",
		append([]string{"--interval", "2s"}, host...)...)
	add("heddle-topo-master", filepath.Join(in.Dir, "heddle-topo-master"), "", "http://127.0.0.1:9001",
		"--namespace", namespace, "--config", programtest.Config(t, "labelConflict: force\n"))
	add(schedulerDaemon, filepath.Join(in.Dir, schedulerDaemon), "", "https://127.0.0.1:10261", s.schedulerFlags(t, in)...)
}

// schedulerFlags writes the chart's configuration of heddle-scheduler.
func (s *soak) schedulerFlags(t *testing.T, in *install.Installer) []string {
	t.Helper()
	rendered, err := in.Template(t.Context(), "x", "deploy/helm/heddle", "-n", namespace, "-s", "templates/scheduler/config.yaml",
		"--set", "gpuScheduler.enabled=true,topoDiscovery.enabled=true,gpuScheduler.map.address=http://127.0.0.1:9001/node_group")
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(rendered), &object); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "scheduler.yaml")
	text := strings.Replace(object.Data["scheduler.yaml"],
		"clientConnection: {", fmt.Sprintf("clientConnection: {kubeconfig: %s, ", s.gateway.kubeconfig), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--config", file, "--secure-port", "10261", "--bind-address", "127.0.0.1", "--v=2",
		"--authorization-always-allow-paths", "/livez,/readyz,/metrics", "--authentication-skip-lookup", "--cert-dir", filepath.Join(s.dir, "certs"),
	}
}

// begin creates the pods that stay, and keeps what must not change.
func (s *soak) begin(t *testing.T) {
	t.Helper()
	anchors := []*corev1.Pod{
		s.pod("anchor-0", box{more: share(70, 40)}), s.pod("anchor-1", box{hcas: 1, more: share(25, 10)}),
		s.pod("anchor-2", box{more: shares(2, 30, 8)}),
		besides(s.pod("anchor-3", box{more: share(20, 4)}), box{name: "side", more: share(40, 4)}),
	}
	for _, p := range append(anchors, s.sharer(claimAnchor)) {
		s.run(t, tolerating(p))
	}
	s.running = s.truthful(t)
	s.records = s.shareRecords(t)
	eventually(t, func() string {
		n := s.node(t)
		if _, ok := n.Labels["heddle.dev/topology.dragonfly"]; !ok || len(n.Spec.Taints) == 0 {
			return fmt.Sprintf("the Node has taints %v and labels %v", n.Spec.Taints, n.Labels)
		}
		s.labels, s.taints = maps.Clone(n.Labels), n.Spec.Taints
		return ""
	})
	pause(t, 3*time.Second) // Informers and connections of the start.
	s.used, s.looked = map[string]use{}, map[string]bool{}
	for _, d := range s.daemons {
		u, err := d.use(t.Context(), s.net)
		if err != nil {
			t.Fatal(err)
		}
		s.used[d.name] = u
	}
	t.Logf("at rest: %+v; labels %v; taints %v", s.used, s.labels, s.taints)
}

// revive starts heddle-scheduler again if it has lost its lease, as the kubelet would. No other daemon
// ends by itself: each fault starts again what it has killed.
func (s *soak) revive(t *testing.T) {
	t.Helper()
	for _, d := range s.daemons {
		if d.running() {
			continue
		}
		last := tail(d.log.String(), 2000)
		if d.name != schedulerDaemon || !strings.Contains(last, "Leaderelection lost") {
			t.Errorf("%s ended by itself: %v\n%s", d.name, d.err, last)
		}
		t.Logf("%s has lost its lease", d.name)
		if err := d.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// serving waits until all daemons are ready.
func (s *soak) serving(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		s.revive(t)
		for _, d := range s.daemons {
			if _, err := s.net.get(t.Context(), d.url+"/readyz"); err != nil {
				return fmt.Sprintf("%s is not ready: %v", d.name, err)
			}
		}
		return ""
	})
}
