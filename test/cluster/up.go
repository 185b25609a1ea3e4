//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Up builds what is missing and starts a cluster. It returns when the node is
// Ready and the default service account exists; the cluster then runs until Down,
// also after this program ends. A cluster of the same name, or what a killed run left of it, is
// removed first. When Up fails it leaves nothing but the logs.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkPlace(o.cache); err != nil {
		return nil, err
	}
	binaries, err := Builder{Log: o.Log}.Build(ctx)
	if err != nil {
		return nil, err
	}
	unlock, err := o.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := makeRoom(ctx, o); err != nil {
		return nil, err
	}
	c, err := newCluster(o.state(binaries), o.Log)
	if err != nil {
		return nil, err
	}
	if err := c.bringUp(ctx, o); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start cluster %s: %w", o.Name, err), c.remove(cleanup))
	}
	return c, nil
}

// makeRoom removes an earlier cluster of this name.
func makeRoom(ctx context.Context, o Options) error {
	old, err := Open(o)
	if errors.Is(err, ErrNotUp) {
		return os.RemoveAll(o.dir())
	}
	if err != nil {
		return err
	}
	return old.remove(ctx)
}

// checkPlace rejects a cache that the node's private directories would hide.
func checkPlace(cache string) error {
	for _, dir := range append(overlays(), "/run", "/var/run") {
		if cache == dir || strings.HasPrefix(cache, dir+"/") {
			return fmt.Errorf("cache %s is below %s, which the node replaces: set HEDDLE_CACHE to another place", cache, dir)
		}
	}
	return nil
}

func (c *Cluster) bringUp(ctx context.Context, o Options) error {
	if err := c.writeFiles(o); err != nil {
		return err
	}
	if err := c.saveSysctls(); err != nil {
		return err
	}
	if err := c.cgroups.create(); err != nil {
		return err
	}
	begin := time.Now()
	step := func(what string) {
		_, _ = fmt.Fprintf(c.log, "%s: %s after %.1f s\n", c.state.Name, what, time.Since(begin).Seconds())
	}
	if err := c.startHolder(ctx); err != nil {
		return err
	}
	if err := c.startForward(ctx); err != nil {
		return err
	}
	if c.state.CRIO != "" {
		if err := c.hideControllers(ctx); err != nil {
			return err
		}
	}
	for _, component := range []string{compEtcd, c.state.runtime(), compAPIServer} {
		if err := c.startOnNode(ctx, component); err != nil {
			return err
		}
	}
	// Images load while the API server starts.
	var images sync.WaitGroup
	var imagesErr error
	images.Go(func() { imagesErr = c.loadImages(ctx) })
	err := c.waitAPI(ctx)
	images.Wait()
	if err := errors.Join(err, imagesErr); err != nil {
		return err
	}
	step("API server ready")
	rest := []string{compKCM, compScheduler, compKubelet}
	if c.state.Kwok {
		rest = append(rest, compKwok)
	}
	for _, component := range rest {
		if err := c.startOnNode(ctx, component); err != nil {
			return err
		}
	}
	if err := c.waitNode(ctx); err != nil {
		return err
	}
	step("node Ready")
	return nil
}

// stateFile is a file of the state directory.
type stateFile struct {
	name string
	data []byte
}

// writeFiles lays the state directory out.
func (c *Cluster) writeFiles(o Options) error {
	s := c.state
	if err := os.RemoveAll(s.LogDir); err != nil {
		return fmt.Errorf("remove old logs: %w", err)
	}
	for _, dir := range []string{s.LogDir, filepath.Join(s.Dir, "run"), filepath.Join(s.Dir, "cni")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create state: %w", err)
		}
	}
	kubelet, err := kubeletConfig(s.Dir, s.socket(), "/"+s.Cgroup+"/"+cgroupNode, o.Kubelet, o.FeatureGates)
	if err != nil {
		return err
	}
	saved, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode cluster state: %w", err)
	}
	files := []stateFile{
		{"cluster.json", saved}, // First: it is what a clean-up starts from.
		{"kubelet.json", kubelet},
		{"containerd.toml", containerdConfig(s.Dir, s.Binaries.Runc, s.Binaries.CNI)},
		{"cni/10-bridge.conflist", cniConfig()},
		{"resolv.conf", []byte("# The node has no DNS.\n")},
	}
	if s.CRIO != "" {
		files = append(files, crioFiles(s.Dir, s.CRIO, s.Binaries.Runc, s.Binaries.CNI)...)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(s.Dir, f.name), f.data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	authority, err := newPKI(filepath.Join(s.Dir, "pki"))
	if err != nil {
		return err
	}
	return authority.writeAll(nodeName, "https://"+net.JoinHostPort(serviceIP, "443"),
		[]net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(serviceIP), net.ParseIP(nodeIP)})
}

// startForward makes the API server reachable from the host, and only there.
func (c *Cluster) startForward(ctx context.Context) error {
	server := net.JoinHostPort(serviceIP, "443")
	address, err := c.forward(ctx, compForward, "port", 0, server)
	if err != nil {
		return err
	}
	node, err := os.ReadFile(c.NodeKubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	host := strings.Replace(string(node), server, address, 1)
	return os.WriteFile(c.Kubeconfig(), []byte(host), 0o600)
}

func (c *Cluster) loadImages(ctx context.Context) error {
	if err := c.waitFile(ctx, c.state.runtime(), c.NodeDir(c.state.socket())); err != nil {
		return err
	}
	for _, file := range c.state.Binaries.Images {
		if err := c.LoadImage(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) waitAPI(ctx context.Context) error {
	return c.wait(ctx, "API server", []string{compEtcd, compAPIServer, compForward}, func() bool {
		return c.answers(ctx, "/readyz")
	})
}

func (c *Cluster) waitNode(ctx context.Context) error {
	err := c.wait(ctx, "node", []string{compAPIServer, compKubelet, c.state.runtime()}, func() bool {
		ok, err := c.nodeReady(ctx, nodeName)
		return err == nil && ok
	})
	if err != nil {
		return err
	}
	// Pods are rejected until their namespace's service account is there.
	return c.wait(ctx, "default service account", []string{compKCM}, func() bool {
		return c.answers(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
	})
}
