//go:build linux

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

// NodeDir is the host's path of a path on the node. For the node's private
// directories (/run, /etc/cdi, /var/lib/kubelet, ...) it is below the state
// directory and holds the same inodes, unix sockets included; others are shared.
func (c *Cluster) NodeDir(path string) string {
	path = filepath.Clean(path)
	if rest, ok := strings.CutPrefix(path, "/var/run"); ok && (rest == "" || rest[0] == '/') {
		path = "/run" + rest
	}
	for _, dir := range binds() {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return filepath.Join(c.state.Dir, "node", path)
		}
	}
	return path
}

// NodeCommand is a command that runs on the node: in its mount and network
// namespaces and in the cluster's cgroup, so that Down ends it. KUBECONFIG is set
// for it, and kubectl and ctr are in its PATH. The caller sets the streams and starts it.
func (c *Cluster) NodeCommand(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	holder, err := c.holder()
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	command := append([]string{name}, args...)
	cmd := c.enter(ctx, command, "-holder", strconv.Itoa(holder), "-dir", dir)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.NodeKubeconfig(), "PATH="+c.path(),
		"CONTAINERD_ADDRESS="+containerdSocket, "CONTAINERD_NAMESPACE=k8s.io")
	return cmd, nil
}

// NodeExec runs a command on the node and returns what it wrote to standard output.
func (c *Cluster) NodeExec(ctx context.Context, name string, args ...string) (string, error) {
	cmd, err := c.NodeCommand(ctx, name, args...)
	if err != nil {
		return "", err
	}
	return run(cmd)
}

// KubectlCommand is kubectl on the host, with the cluster's kubeconfig.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.state.Binaries.Kubernetes, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	return cmd
}

// Kubectl runs kubectl and returns what it wrote to standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return run(c.KubectlCommand(ctx, args...))
}

// Apply runs kubectl apply on a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	cmd := c.KubectlCommand(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifest)
	_, err := run(cmd)
	return err
}

func run(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s",
			filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, tail(stderr.String(), 2000))
	}
	return stdout.String(), nil
}

// LoadImage imports a docker-archive, such as image.Pack writes, into the node.
func (c *Cluster) LoadImage(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open image: %w", err)
	}
	defer func() { _ = f.Close() }()
	// From standard input: the node does not see every path of the host.
	command := []string{
		filepath.Join(c.state.Binaries.Containerd, "ctr"), "-a", containerdSocket, "-n", "k8s.io",
		"images", "import", "--local", "-",
	}
	if c.state.CRIO != "" {
		name, err := image.Name(f)
		if _, seekErr := f.Seek(0, io.SeekStart); errors.Join(err, seekErr) != nil {
			return fmt.Errorf("load image %s: %w", file, errors.Join(err, seekErr))
		}
		command = c.state.crioImport(name)
	}
	cmd, err := c.NodeCommand(ctx, command[0], command[1:]...)
	if err != nil {
		return err
	}
	cmd.Stdin = f
	if _, err := run(cmd); err != nil {
		return fmt.Errorf("load image %s: %w", file, err)
	}
	return nil
}

// StopKubelet ends the kubelet; pods keep running.
func (c *Cluster) StopKubelet(ctx context.Context) error { return c.stop(ctx, compKubelet) }

// StartKubelet starts the kubelet and waits until it answers.
func (c *Cluster) StartKubelet(ctx context.Context) error {
	if err := c.startStopped(ctx, compKubelet); err != nil {
		return err
	}
	return c.wait(ctx, "kubelet", []string{compKubelet}, func() bool {
		return c.answers(ctx, "/api/v1/nodes/"+nodeName+"/proxy/healthz")
	})
}

// RestartKubelet is StopKubelet and StartKubelet.
func (c *Cluster) RestartKubelet(ctx context.Context) error {
	if err := c.StopKubelet(ctx); err != nil {
		return err
	}
	return c.StartKubelet(ctx)
}

// StopContainerd ends containerd; containers keep running under their shims.
func (c *Cluster) StopContainerd(ctx context.Context) error { return c.stop(ctx, compContainerd) }

// StartContainerd starts containerd and waits until it answers.
func (c *Cluster) StartContainerd(ctx context.Context) error {
	if err := c.startStopped(ctx, compContainerd); err != nil {
		return err
	}
	return c.wait(ctx, compContainerd, []string{compContainerd}, func() bool {
		_, err := c.NodeExec(ctx, "ctr", "-a", containerdSocket, "version")
		return err == nil
	})
}

// StartAPIServer starts the API server and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.startStopped(ctx, compAPIServer); err != nil {
		return err
	}
	return c.waitAPI(ctx)
}

func (c *Cluster) stop(ctx context.Context, component string) error {
	p, ok := loadPID(c.pidFile(component))
	if !ok {
		return nil
	}
	if err := p.stop(ctx, unix.SIGTERM, 10*time.Second); err != nil {
		return fmt.Errorf("stop %s: %w", component, err)
	}
	return nil
}

func (c *Cluster) startStopped(ctx context.Context, component string) error {
	if p, ok := loadPID(c.pidFile(component)); ok && p.alive() {
		return errors.New(component + " is running")
	}
	return c.startOnNode(ctx, component)
}
