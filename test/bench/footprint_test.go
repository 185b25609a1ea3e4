//go:build cgo && linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// TestMain has the flag of BenchmarkFootprint.
func TestMain(m *testing.M) {
	flag.Duration("idle", time.Minute, "how long the daemons are weighed")
	m.Run()
}

// BenchmarkFootprint weighs the daemons of a node, and those that they replace, each on a node of its own: the same DGX
// H100 of test/sysfstest, stand-in for the driver, kubelet and API server.
func BenchmarkFootprint(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("a cluster takes root")
	}
	idle, ok := flag.Lookup("idle").Value.(flag.Getter).Get().(time.Duration)
	if !ok {
		b.Fatal("flag idle is not a duration")
	}
	m := newMachine(b)
	for b.Loop() {
		theirs := m.weigh(b, m.rivals(b), idle)
		ours := m.weigh(b, m.heddle(b), idle)
		for name, own := range ours.sum().metrics() {
			b.ReportMetric(own, name)
			other := theirs.sum().metrics()[name]
			b.ReportMetric(other, "their-"+name)
			if other > 0 {
				b.ReportMetric(own/other, name+"-ratio")
			}
		}
	}
}

// set is the daemons of a node, and what they need.
type set struct {
	daemons []daemon
	// crds are applied before, and kubectl waits for the conditions after.
	crds string
	wait [][]string
}

// usage holds the resources that daemons use: memory in MB, seconds of processor time, and writes to the API server from
// the start until the idle time and in it.
type usage struct {
	pss, anonymous, cpu   float64
	startWrites, writes   int
	startRequest, request int
}

type usages map[string]usage

func (all usages) sum() (sum usage) {
	for _, l := range all {
		sum.pss += l.pss
		sum.anonymous += l.anonymous
		sum.cpu += l.cpu
		sum.startWrites += l.startWrites
		sum.writes += l.writes
		sum.startRequest += l.startRequest
		sum.request += l.request
	}
	return sum
}

func (l usage) metrics() map[string]float64 {
	return map[string]float64{
		"pss-MB": l.pss, "anon-MB": l.anonymous, "cpu-s": l.cpu,
		"writes": float64(l.writes), "start-writes": float64(l.startWrites), "requests": float64(l.request),
	}
}

// heddle is heddle's daemons with the chart's values and a map.
func (m *benchMachine) heddle(b *testing.B) set {
	b.Helper()
	build, err := install.New(b.Context(), b.TempDir(), nil)
	if err != nil {
		b.Fatal(err)
	}
	binary, err := build.Build(b.Context(), nodeProgram)
	if err != nil {
		b.Fatal(err)
	}
	crd, err := os.ReadFile(filepath.Join(build.Root, "deploy/helm/heddle/crds/topology.heddle.dev_nodetopologies.yaml"))
	config := filepath.Join(m.dir, "config")
	err = errors.Join(err, os.Mkdir(config, 0o755), os.WriteFile(filepath.Join(config, "version"), []byte("v1"), 0o600),
		os.WriteFile(filepath.Join(config, "cluster-config"), []byte("mode: native\n"), 0o600))
	if err != nil {
		b.Fatal(err)
	}
	f := set{crds: string(crd), wait: [][]string{
		{"node", `--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=8`},
		{"node", `--for=jsonpath={.metadata.labels.nvidia\.com/gpu\.count}=8`},
		{"nodetopology", "--for=create"},
	}}
	for i, own := range [][]string{
		{"device-plugin", "--state-dir", filepath.Join(m.dir, "state"), "--cdi-dir", "/var/run/cdi", "--interval", "10s"},
		{"feature-discovery"},
		{"topo-worker"},
	} {
		f.daemons = append(f.daemons, daemon{program: binary, agent: "heddle-" + own[0], args: append(own, "--node-name", "$NODE_NAME",
			"--config", config, "--metrics-address", fmt.Sprint("127.0.0.1:", 19110+i),
			"--sysfs-root", m.tree.Sys(), "--proc-root", m.tree.Proc(), "--dev-root", m.tree.Dev(), "--driver-root", m.driver.Root)})
	}
	return f
}

// rivals is NVIDIA's device plugin and gpu-feature-discovery, NFD's worker and Mellanox's shared device plugin, by the
// charts' values, with as many shared HCAs as heddle has. NFD's master, one for a cluster, writes to the Node.
func (m *benchMachine) rivals(b *testing.B) set {
	b.Helper()
	if _, err := os.Stat("/usr/share/misc/pci.ids"); err != nil {
		b.Skip("NFD and Mellanox's plugin need Debian's package pci.ids: ", err)
	}
	const nfd = "sigs.k8s.io/node-feature-discovery"
	worker := m.build(b, "nfd", nfd+"/cmd/nfd-worker") // Downloads the module with the CRDs.
	crds, err := exec.CommandContext(b.Context(), "go", "list", "-C", "../peers/nfd", "-m", "-f", "{{.Dir}}", nfd).Output()
	if err != nil {
		b.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(crds)), "deployment/base/nfd-crds/nfd-api-crds.yaml"))
	rdma := filepath.Join(m.dir, "rdma.json")
	err = errors.Join(err, os.WriteFile(rdma, []byte(`{"configList": [
		{"resourceName": "hca", "rdmaHcaMax": 512, "selectors": {"vendors": ["15b3"]}}]}`), 0o600))
	if err != nil {
		b.Fatal(err)
	}
	root := m.driver.Root
	libraries := "LD_LIBRARY_PATH=" + m.driver.Libraries()
	return set{crds: string(text), wait: [][]string{
		{"node", `--for=jsonpath={.status.allocatable.nvidia\.com/gpu}=8`},
		{"node", `--for=jsonpath={.status.allocatable.rdma/hca}=512`},
		{"node", `--for=jsonpath={.metadata.labels.nvidia\.com/gpu\.count}=8`},
		{"node", `--for=jsonpath={.metadata.labels.feature\.node\.kubernetes\.io/pci-10de\.present}=true`},
	}, daemons: []daemon{
		{program: m.build(b, "nvidia", "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"), sys: m.tree.Sys(), args: []string{
			"--driver-root", root, "--driver-root-ctr-path", root, "--device-discovery-strategy", "nvml",
		}},
		{program: m.build(b, "nvidia", "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"), sys: m.tree.Sys(), env: []string{libraries}},
		{program: worker, sys: m.tree.Sys(), args: []string{
			"-kubeconfig", "$KUBECONFIG", "-port", "19120", "-options",
			`{"sources": {"pci": {"deviceClassWhitelist": ["02", "03"], "deviceLabelFields": ["vendor"]}}}`,
		}},
		{program: m.build(b, "mellanox", "."), sys: m.tree.Sys(), dev: m.tree.Dev(), args: []string{rdma}},
		{program: m.build(b, "nfd", nfd+"/cmd/nfd-master"), central: true, args: []string{
			"-kubeconfig", "$KUBECONFIG", "-port", "19121", "-extra-label-ns", "nvidia.com",
		}},
	}}
}

// build builds a program of a module in test/peers as its own project does.
func (m *benchMachine) build(b *testing.B, module, pkg string) string {
	b.Helper()
	file := filepath.Join(m.dir, filepath.Base(pkg))
	if pkg == "." {
		file = filepath.Join(m.dir, module)
	}
	cmd := exec.CommandContext(b.Context(), "go", "build", "-C", "../peers/"+module, "-trimpath", "-ldflags",
		"-s -w -X sigs.k8s.io/node-feature-discovery/pkg/version.version=v0.18.3", "-o", file, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return file
}

// weigh runs daemons on a node of their own.
func (m *benchMachine) weigh(b *testing.B, f set, idle time.Duration) usages {
	b.Helper()
	ctx := b.Context()
	audit := filepath.Join(b.TempDir(), "audit.log")
	policy := audit + ".yaml"
	err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+
		"omitStages: [RequestReceived, ResponseStarted]\nrules: [{level: Metadata}]\n"), 0o600)
	if err != nil {
		b.Fatal(err)
	}
	c, err := cluster.Up(ctx, cluster.Options{
		Name: "bench", APIServerArgs: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + audit},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := c.Down(context.WithoutCancel(ctx)); err != nil {
			b.Error(err)
		}
	}()
	if err := errors.Join(netdevs(ctx, c), c.Apply(ctx, f.crds)); err != nil {
		b.Fatal(err)
	}
	output, err := os.Create(audit + ".daemons")
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if text, err := os.ReadFile(output.Name()); b.Failed() {
			b.Log(string(text), err)
		}
		_ = output.Close() // It was read.
	}()
	pids := map[string]int{}
	for _, d := range f.daemons {
		pid, end, err := onNode(ctx, c, output, d)
		if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := end(); err != nil {
				b.Error(err)
			}
		}()
		if !d.central {
			pids[d.userAgent()] = pid
		}
	}
	for _, wait := range f.wait {
		if _, err := c.Kubectl(ctx, append([]string{"wait", wait[0] + "/" + c.Node(), "--timeout=60s"}, wait[1:]...)...); err != nil {
			b.Fatal(err)
		}
	}
	result, err := measure(ctx, f, pids, audit, idle)
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(result)) {
		b.Logf("%-24s %+v", name, result[name])
	}
	b.Logf("%-24s %+v", "all", result.sum())
	return result
}

// netdevs makes the network devices of the machine's HCAs, which Mellanox's plugin asks the kernel for.
func netdevs(ctx context.Context, c *cluster.Cluster) (err error) {
	names := []string{"ens1f0np0"}
	for i := range 8 {
		names = append(names, fmt.Sprint("ib", i))
	}
	for _, name := range names {
		_, failed := c.NodeExec(ctx, "ip", "link", "add", name, "type", "bridge")
		err = errors.Join(err, failed)
	}
	return err
}

// measure weighs processes by user agent, which stands for what others do for them too.
func measure(ctx context.Context, f set, pids map[string]int, audit string, idle time.Duration) (usages, error) {
	if err := sleep(ctx, settling); err != nil {
		return nil, err
	}
	before, all := map[string]time.Duration{}, usages{}
	var err error
	for name, pid := range pids {
		before[name], err = processorTime(pid)
		if err != nil {
			return nil, err
		}
	}
	start, err := requests(audit)
	if err != nil {
		return nil, err
	}
	if err := sleep(ctx, idle); err != nil {
		return nil, err
	}
	end, err := requests(audit)
	if err != nil {
		return nil, err
	}
	for _, d := range f.daemons {
		name := d.userAgent()
		l := usage{
			startRequest: start[name].all, request: end[name].all - start[name].all,
			startWrites: start[name].writes, writes: end[name].writes - start[name].writes,
		}
		if d.central { // Only what it writes to the Node counts.
			l.startRequest, l.request = l.startWrites, l.writes
		} else {
			pid := pids[name]
			after, errTime := processorTime(pid)
			var errPSS, errAnonymous error
			l.pss, errPSS = memory(pid, "Pss:")
			l.anonymous, errAnonymous = memory(pid, "Anonymous:")
			l.cpu = (after - before[name]).Seconds()
			err = errors.Join(err, errTime, errPSS, errAnonymous)
		}
		all[name] = l
	}
	return all, err
}

// count is how many requests a user agent made, and how many of these were writes.
type count struct{ all, writes int }

// requests counts those of an audit log by the name of the user agent.
func requests(audit string) (map[string]count, error) {
	f, err := os.Open(audit)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counts := map[string]count{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb      string `json:"verb"`
			UserAgent string `json:"userAgent"`
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		name, _, _ := strings.Cut(event.UserAgent, "/")
		c := counts[name]
		c.all++
		if slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, event.Verb) {
			c.writes++
		}
		counts[name] = c
	}
	return counts, lines.Err()
}
