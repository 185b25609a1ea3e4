//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// The programs of the images.
const (
	node       = "heddle-node"
	topoMaster = "heddle-topo-master"
	scheduler  = "heddle-scheduler"
)

// stage is the cluster being furnished.
type stage struct {
	*cluster.Cluster
	installer *install.Installer
	// archives are the images of heddle.
	archives []string
	out, log io.Writer
	// url is where topo-master answers.
	url string
}

func (s *stage) furnish(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		s.load, s.daemons, s.fabric, s.gangs, s.show, s.showDevices, s.showShares, s.showClaims, s.showTopology, s.hints,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// dump is a machine file.
func (s *stage) dump(machine string) string {
	return filepath.Join(s.installer.Root, "test/machines", machine+".json")
}

// nodes is the directory of the device nodes; Down removes it.
func (s *stage) nodes() string { return filepath.Join(s.Dir(), "devices") }

// load brings images and simulated nodes into the cluster.
func (s *stage) load(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, archive := range s.archives {
		group.Go(func() error { return s.LoadImage(ctx, archive) })
	}
	group.Go(func() error { return s.fleet(ctx) })
	return group.Wait()
}

// fleet makes the simulated nodes.
func (s *stage) fleet(ctx context.Context) error {
	gpus, err := s.writeFleet(s.fleetDir())
	if err != nil {
		return err
	}
	for _, m := range members(s.Node()) {
		if m.name == s.Node() {
			continue
		}
		n := cluster.SimulatedNode{Name: m.name}
		if gpus[m.name] > 0 {
			n.Capacity = map[string]string{"nvidia.com/gpu": fmt.Sprint(gpus[m.name])}
		}
		if m.fabricOnly {
			n.Labels = map[string]string{fabricOnly: "true"}
			n.Taints = []corev1.Taint{{Key: fabricOnly, Effect: corev1.TaintEffectNoSchedule}}
		}
		if err := s.AddSimulatedNode(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// fabricOnly is the label and the taint of nodes that are there for their cables.
const fabricOnly = "demo.heddle.dev/fabric-only"

// daemons installs the chart: on the real node the DaemonSets replay a DGX
// H100. A simulated node runs no pods, so the same binary writes its labels
// from here, with the same configuration.
func (s *stage) daemons(ctx context.Context) error {
	dump := s.dump("dgx-h100")
	// The replayed GPUs and HCAs get true device nodes, so that the device
	// cgroup has something to guard. They have no driver.
	if err := install.DeviceNodes(dump, s.nodes()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"create", "namespace", "heddle-system"},
		{"-n", "heddle-system", "create", "configmap", "demo-machine", "--from-file=machine.json=" + dump},
		{
			"-n", "heddle-system", "create", "configmap", "demo-fabric",
			"--from-file=" + filepath.Join(s.fleetDir(), fabricName),
		},
		{"apply", "-f", filepath.Join(s.installer.Root, "test/demo/map.yaml")},
	} {
		if _, err := s.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	// Helm waits until all pods are ready; what needs the configuration and the
	// CRD alone goes on meanwhile.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return s.installer.Chart(ctx, s.Cluster, "--values", "test/demo/values.yaml",
			"--set", "gpuDevice.replayDevices="+s.nodes())
	})
	group.Go(func() error {
		for _, step := range []func(context.Context) error{s.installed, s.startWorkers, s.label, s.workloads} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// installed waits for what Helm makes first.
func (s *stage) installed(ctx context.Context) error {
	_, err := s.Kubectl(ctx, "-n", "heddle-system", "wait", "configmap/heddle-device-config",
		"--for=create", "--timeout=60s")
	return err
}

// label runs feature discovery for the simulated nodes that are there for more
// than their cables.
func (s *stage) label(ctx context.Context) error {
	config, err := s.writeConfig(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range members(s.Node()) {
		if m.fabricOnly || m.name == s.Node() {
			continue
		}
		group.Go(func() error {
			cmd := exec.CommandContext(ctx, filepath.Join(s.installer.Dir, node), "feature-discovery",
				"--oneshot", "--node-name", m.name,
				"--machine", filepath.Join(s.fleetDir(), m.name+".json"),
				"--config", config, "--kubeconfig", s.Kubeconfig(), "--log-level", "warn")
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("label %s: %w\n%s", m.name, err, out)
			}
			return nil
		})
	}
	return group.Wait()
}

// writeConfig copies the ConfigMap that the chart made into a directory, as
// the kubelet does for the DaemonSet.
func (s *stage) writeConfig(ctx context.Context) (string, error) {
	dir := filepath.Join(s.installer.Dir, "config")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("write configuration: %w", err)
	}
	for _, key := range []string{"version", "cluster-config", "nodes-config"} {
		text, err := s.Kubectl(ctx, "-n", "heddle-system", "get", "configmap", "heddle-device-config",
			"-o", "jsonpath={.data."+key+"}")
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, key), []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("write configuration: %w", err)
		}
	}
	return dir, nil
}

// workloads starts what node pools are for, once every node carries its labels.
func (s *stage) workloads(ctx context.Context) error {
	if err := s.waitLabels(ctx); err != nil {
		return err
	}
	if err := s.waitAssigned(ctx); err != nil {
		return err
	}
	file := filepath.Join(s.installer.Root, "test/demo/workloads.yaml")
	if _, err := s.Kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
	return err
}

func (s *stage) waitLabels(ctx context.Context) error {
	return s.until(ctx, func(out string) bool { return out != "" }, "the labels of node "+s.Node(),
		"get", "node", s.Node(), "-o", `jsonpath={.metadata.labels.nvidia\.com/gpu\.product}`)
}

// waitAssigned waits until a pod that asks for GPUs goes to heddle-scheduler: the
// API server takes a new policy over within a second or two.
func (s *stage) waitAssigned(ctx context.Context) error {
	return s.until(ctx, func(out string) bool { return out == scheduler }, "the admission of GPU pods",
		"create", "--dry-run=server", "-o", "jsonpath={.spec.schedulerName}",
		"-f", filepath.Join(s.installer.Root, "deploy/examples/gpu-pod.yaml"))
}

// until asks kubectl again until the answer is good.
func (s *stage) until(ctx context.Context, good func(string) bool, what string, kubectl ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := s.Kubectl(ctx, kubectl...)
		if err == nil && good(out) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w; last %q, %v", what, ctx.Err(), out, err) //nolint:errorlint // Perhaps nil.
		case <-tick.C:
		}
	}
}

// show runs the commands that a person would, and prints them with their
// output.
func (s *stage) show(ctx context.Context) error {
	for _, c := range []struct{ title, command string }{
		{
			"What each node is",
			"kubectl get nodes -l " + fabricOnly + "!=true -L " +
				"nvidia.com/gpu.product,nvidia.com/gpu.count,heddle.dev/node.usage,heddle.dev/rdma.hca.count",
		},
		{
			"Who is kept away from each node",
			"kubectl get nodes -l " + fabricOnly + "!=true " +
				"-o custom-columns=NODE:.metadata.name,TAINTS:.spec.taints[*].key,VALUES:.spec.taints[*].value",
		},
		{
			"Where pods landed",
			"kubectl get pods --sort-by=.metadata.name " +
				"-o custom-columns=POD:.metadata.name,NODE:.spec.nodeName,STATUS:.status.phase",
		},
	} {
		out, err := s.Kubectl(ctx, strings.Fields(c.command)[1:]...)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "\n# %s\n$ %s\n%s", c.title, c.command, out)
	}
	return nil
}

// hints are what a person can do next.
func (s *stage) hints(ctx context.Context) error {
	kubectl := s.KubectlCommand(ctx).Path
	fmt.Fprintf(s.out, "\n# Try it\nexport KUBECONFIG=%s PATH=%s:%s:$PATH\n"+
		"kubectl describe node %s\n"+
		"kubectl -n heddle-system logs ds/heddle-feature-discovery\n"+
		"kubectl label node %s nvidia.com/gpu.product- && kubectl get node %s -L nvidia.com/gpu.product   # it comes back\n"+
		"kubectl -n pretraining delete pod moe-3 && sleep 4 && heddle topo gangs   # made again where the others are\n"+
		"sed -i '/%s:/,/^  [^ ]/s/%s-rail%d/su3-rail%d/' %s && sleep 4 && heddle topo miscabled   # the cable in its place\n"+
		"\n# Stop it\nmake demo-down\n",
		s.Kubeconfig(), filepath.Dir(kubectl), s.installer.Dir, s.Node(), s.Node(), s.Node(),
		wrongNode, wrongGroup, wrongRail, wrongRail, filepath.Join(s.fleetDir(), fabricName))
	return nil
}

// showDevices shows what two pods got: GPUs, and as many HCAs next to them.
func (s *stage) showDevices(ctx context.Context) error {
	for _, c := range []struct{ title, pod string }{
		{"What the training pod got: 2 GPUs, and the HCAs next to them (PIX: inside one PCIe switch)", "deploy/training"},
		{"What a pod got by a ResourceClaim for four pairs", "pairs"},
	} {
		out, err := s.Kubectl(ctx, "exec", c.pod, "--", "cat", cdi.DevicesFile)
		if err != nil {
			return err
		}
		var got cdi.Devices
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			return fmt.Errorf("read the devices of %s: %w", c.pod, err)
		}
		fmt.Fprintf(s.out, "\n# %s\n$ kubectl exec %s -- cat %s   # in short\n", c.title, c.pod, cdi.DevicesFile)
		for _, g := range got.GPUs {
			fmt.Fprintf(s.out, "GPU%d  %-6s  %s\n", g.Index, g.HCA, g.Class)
		}
	}
	return nil
}

// showClaims starts four shares by claims, and shows why the last one waits.
func (s *stage) showClaims(ctx context.Context) error {
	file := filepath.Join(s.installer.Root, "test/demo/claimed-shares.yaml")
	if _, err := s.Kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	rejected := func(out string) bool {
		return strings.Count(out, "Running") == 3 && strings.Contains(out, "Unschedulable")
	}
	err := s.until(ctx, rejected, "three of four shares", "get", "pods", "-l", "app=share", "-o",
		`jsonpath={range .items[*]}{.status.phase} {.status.conditions[?(@.type=="PodScheduled")].reason}{"\n"}{end}`)
	if err != nil {
		return err
	}
	const list = "get pods -l app=share -o custom-columns=POD:.metadata.name,STATUS:.status.phase"
	out, err := s.Kubectl(ctx, strings.Fields(list)...)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n# Four ResourceClaims for 30 %% and 24 GiB of a GPU, with one GPU left\n$ kubectl %s\n%s",
		list, out)
	for line := range strings.Lines(out) {
		if pod, isPending := strings.CutSuffix(strings.TrimSpace(line), "Pending"); isPending {
			pod = strings.TrimSpace(pod)
			why, err := s.heddle(ctx, "why", pod)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.out, "$ heddle why %s\n%s", pod, why)
		}
	}
	return nil
}

// showShares shows the consumers of the GPU that is shared, as doctor prints it
// from anywhere, by way of the API server.
func (s *stage) showShares(ctx context.Context) error {
	// What each pod has is published within seconds of its start.
	if _, err := s.Kubectl(ctx, "wait", "pod", "-l", "shares=gpu", "--timeout=30s",
		`--for=jsonpath={.metadata.annotations.heddle\.dev/sgpu-bound}`); err != nil {
		return err
	}
	out, err := s.heddle(ctx, "doctor", "--node", s.Node())
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n# Three pods on one GPU, each with its share of it\n$ heddle doctor --node %s\n%s",
		s.Node(), out)
	return nil
}
