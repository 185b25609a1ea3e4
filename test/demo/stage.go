//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// discovery is the program that labels nodes.
const discovery = "heddle-feature-discovery"

// fleet are the simulated nodes and what each replays, from test/machines.
// Their purposes stand in values.yaml.
func fleet() map[string]string {
	return map[string]string{
		"h20-1":    "h20-4nic",
		"h20-2":    "h20-4nic",
		"h800-1":   "h800-8ib-bond",
		"gb200-1":  "gb200-tray",
		"mixed-1":  "mixed-l40s-h100",
		"storage1": "amd-epyc-no-gpu",
	}
}

// stage is the cluster being furnished.
type stage struct {
	*cluster.Cluster
	installer *install.Installer
	out, log  io.Writer
}

// dump is a machine file.
func (s *stage) dump(machine string) string {
	return filepath.Join(s.installer.Root, "test/machines", machine+".json")
}

// nodes is the directory of the device nodes; Down removes it.
func (s *stage) nodes() string { return filepath.Join(s.Dir(), "devices") }

// fleet makes the simulated nodes.
func (s *stage) fleet(ctx context.Context) error {
	for node := range fleet() {
		if err := s.AddSimulatedNode(ctx, cluster.SimulatedNode{Name: node}); err != nil {
			return err
		}
	}
	return nil
}

// daemons installs the chart: on the real node the DaemonSet replays a DGX
// H100. A simulated node runs no pods, so the same binary writes its labels
// from here, with the same configuration.
func (s *stage) daemons(ctx context.Context) error {
	for _, binary := range []string{discovery, "heddle-device-plugin"} {
		if err := s.installer.Image(ctx, s.Cluster, binary); err != nil {
			return err
		}
	}
	dump := s.dump("dgx-h100")
	// The replayed GPUs and HCAs get true device nodes, so that the device
	// cgroup has something to guard. They have no driver.
	if err := install.DeviceNodes(dump, s.nodes()); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"create", "namespace", "heddle-system"},
		{"-n", "heddle-system", "create", "configmap", "demo-machine", "--from-file=machine.json=" + dump},
	} {
		if _, err := s.Kubectl(ctx, args...); err != nil {
			return err
		}
	}
	if err := s.installer.Chart(ctx, s.Cluster, "--values", "test/demo/values.yaml",
		"--set", "gpuDevice.replayDevices="+s.nodes()); err != nil {
		return err
	}
	config, err := s.writeConfig(ctx)
	if err != nil {
		return err
	}
	for node, machine := range fleet() {
		cmd := exec.CommandContext(ctx, filepath.Join(s.installer.Dir, discovery), "--oneshot", "--node-name", node,
			"--machine", s.dump(machine),
			"--config", config, "--kubeconfig", s.Kubeconfig(), "--log-level", "warn")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("label %s: %w\n%s", node, err, out)
		}
	}
	return nil
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
	file := filepath.Join(s.installer.Root, "test/demo/workloads.yaml")
	if _, err := s.Kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
	return err
}

func (s *stage) waitLabels(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := s.Kubectl(ctx, "get", "node", s.Node(), "-o", `jsonpath={.metadata.labels.nvidia\.com/gpu\.product}`)
		if err == nil && out != "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s has no labels from heddle-feature-discovery: %w", s.Node(), ctx.Err())
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
			"kubectl get nodes -L " +
				"nvidia.com/gpu.product,nvidia.com/gpu.count,heddle.dev/node.usage,heddle.dev/rdma.hca.count",
		},
		{
			"Who is kept away from each node",
			"kubectl get nodes -o custom-columns=NODE:.metadata.name,TAINTS:.spec.taints[*].key,VALUES:.spec.taints[*].value",
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
	if err := s.showDevices(ctx); err != nil {
		return err
	}
	if err := s.showShares(ctx); err != nil {
		return err
	}
	kubectl := s.KubectlCommand(ctx).Path
	fmt.Fprintf(s.out, "\n# Try it\nexport KUBECONFIG=%s PATH=%s:%s:$PATH\n"+
		"kubectl describe node %s\n"+
		"kubectl -n heddle-system logs ds/heddle-feature-discovery\n"+
		"kubectl label node %s nvidia.com/gpu.product- && kubectl get node %s -L nvidia.com/gpu.product   # it comes back\n"+
		"\n# Stop it\nmake demo-down\n",
		s.Kubeconfig(), filepath.Dir(kubectl), s.installer.Dir, s.Node(), s.Node(), s.Node())
	return nil
}

// showDevices shows what the training pod got: four GPUs, and the four HCAs
// next to them.
func (s *stage) showDevices(ctx context.Context) error {
	out, err := s.Kubectl(ctx, "exec", "deploy/training", "--", "cat", binder.DevicesFile)
	if err != nil {
		return err
	}
	var got binder.Devices
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		return fmt.Errorf("read the devices of the training pod: %w", err)
	}
	fmt.Fprintf(s.out, "\n# What the training pod got: 4 GPUs, and the HCAs next to them (PIX: inside one PCIe switch)\n"+
		"$ kubectl exec deploy/training -- cat %s   # in short\n", binder.DevicesFile)
	for _, g := range got.GPUs {
		fmt.Fprintf(s.out, "GPU%d  %-6s  %s\n", g.Index, g.HCA, g.Class)
	}
	return nil
}

// showShares shows who has what of the card that is shared, as doctor tells it
// from anywhere, by way of the API server.
func (s *stage) showShares(ctx context.Context) error {
	heddle, err := s.installer.Build(ctx, "heddle")
	if err != nil {
		return err
	}
	// What each pod has is told within seconds of its start.
	if _, err := s.Kubectl(ctx, "wait", "pod", "-l", "shares=gpu", "--timeout=30s",
		`--for=jsonpath={.metadata.annotations.heddle\.dev/sgpu-bound}`); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, heddle, "doctor", "--node", s.Node(), "--kubeconfig", s.Kubeconfig())
	out, err := cmd.Output()
	// Findings are an exit code, and what the demo is to show.
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return fmt.Errorf("heddle doctor: %w", err)
	}
	fmt.Fprintf(s.out, "\n# Three pods on one card, each with its share of it\n$ heddle doctor --node %s\n%s",
		s.Node(), out)
	return nil
}
