//go:build linux

package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StartDaemon runs a program of the caller's on the host, in the cluster's
// cgroup, so that Down ends it. It outlives ctx and the caller; its log is that
// of a component of this name. HOME and PATH are all of its environment.
func (c *Cluster) StartDaemon(ctx context.Context, name string, command ...string) error {
	return c.start(ctx, name, nil, command)
}

// Expose makes a Service answer: at its own address on the node, where no
// kube-proxy runs, and at a port of 127.0.0.1 on the host. Port 0 takes a free
// one. It returns the host's address. The Service has one TCP port.
func (c *Cluster) Expose(ctx context.Context, namespace, name string, port int) (address string, err error) {
	client, err := c.client()
	if err != nil {
		return "", err
	}
	service, err := client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("expose service %s: %w", name, err)
	}
	if len(service.Spec.Ports) != 1 {
		return "", fmt.Errorf("expose service %s: it has %d ports, want 1", name, len(service.Spec.Ports))
	}
	at := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port)))
	holder, err := c.holder()
	if err != nil {
		return "", err
	}
	component := "service-" + name
	ready := filepath.Join(c.state.Dir, "run", component+".ready")
	err = c.start(ctx, component, nil, []string{
		c.state.Binaries.Node, "service", "-at", at, "-namespace", namespace, "-name", name,
		"-pki", filepath.Join(c.state.Dir, "pki"), "-api", net.JoinHostPort(serviceIP, "443"), "-ready", ready,
	}, "-holder", strconv.Itoa(holder), "-dir", "/")
	if err != nil {
		return "", err
	}
	if err := c.waitFile(ctx, component, ready); err != nil {
		return "", err
	}
	return c.forward(ctx, "forward-"+name, "port-"+name, port, at)
}

// forward carries connections from a port of 127.0.0.1 on the host to an address
// on the node, and records the port in the state directory.
func (c *Cluster) forward(
	ctx context.Context, component, file string, port int, to string,
) (address string, err error) {
	holder, err := c.holder()
	if err != nil {
		return "", err
	}
	portFile := filepath.Join(c.state.Dir, "run", file)
	err = c.start(ctx, component, nil, []string{
		c.state.Binaries.Node, "forward", "-listen", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		"-port-file", portFile, "-netns", fmt.Sprintf("/proc/%d/ns/net", holder), "-to", to,
	})
	if err != nil {
		return "", err
	}
	if err := c.waitFile(ctx, component, portFile); err != nil {
		return "", err
	}
	chosen, err := os.ReadFile(portFile)
	if err != nil {
		return "", fmt.Errorf("read port: %w", err)
	}
	return net.JoinHostPort("127.0.0.1", string(chosen)), nil
}
