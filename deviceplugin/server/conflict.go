package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// registryDir is where plugins of the kubelet's plugin watcher put their
	// sockets.
	registryDir = "plugins_registry"
	infoTimeout = 500 * time.Millisecond
	// goneAfter is how long a kubelet may list the devices of a plugin that has
	// ended: those of heddle's own process that this one replaces. It is asked
	// goneAsks more times until then; it answers a hundred questions a second.
	goneAfter = 300 * time.Millisecond
	goneAsks  = 3
	// maxSockets bounds how many sockets are read; a node has a dozen plugins.
	maxSockets = 64
)

// Conflict names another device plugin of the resource on this node, or returns
// "". The kubelet decides: a plugin conflicts if its socket in plugins_registry
// names the resource, or if the kubelet has healthy devices of the resource while
// no process of heddle serves it (pods nil: not asked). It never watches another
// plugin's devices: some send a change to one stream only.
func Conflict(
	ctx context.Context, kubeletDir, resource string, pods podresources.PodResourcesListerClient,
) (string, error) {
	owner, err := registered(ctx, filepath.Join(kubeletDir, registryDir), resource)
	if owner != "" || err != nil {
		return owner, err
	}
	dir := filepath.Join(kubeletDir, pluginDir)
	names, err := sockets(dir)
	if err != nil || pods == nil {
		return "", err
	}
	var others []string
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, socketPrefix(resource)) && alive(ctx, filepath.Join(dir, name)):
			return "", nil
		case name != kubeletSocket && !strings.HasPrefix(name, namePrefix):
			others = append(others, name)
		}
	}
	offered, err := stillOffered(ctx, pods, resource)
	if err != nil || !offered {
		return "", err
	}
	return fmt.Sprintf("another device plugin (sockets: %s)", strings.Join(others, ", ")), nil
}

// registered asks the sockets of plugins_registry which resource they serve.
func registered(ctx context.Context, dir, resource string) (string, error) {
	names, err := sockets(dir)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		info, err := info(ctx, filepath.Join(dir, name))
		if err != nil {
			// A stale socket, or a busy plugin, claims nothing.
			continue
		}
		if info.GetType() == pluginregistration.DevicePlugin && info.GetName() == resource {
			return registryDir + "/" + name, nil
		}
	}
	return "", nil
}

func info(ctx context.Context, path string) (*pluginregistration.PluginInfo, error) {
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", path, err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	return pluginregistration.NewRegistrationClient(conn).GetInfo(ctx, &pluginregistration.InfoRequest{})
}

// sockets lists the sockets in a directory; a missing one has none.
func sockets(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if entry.Type()&os.ModeSocket != 0 && len(names) < maxSockets {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// stillOffered reports whether the kubelet has healthy devices of a resource, after
// it had time to notice the end of their plugin.
func stillOffered(
	ctx context.Context, pods podresources.PodResourcesListerClient, resource string,
) (found bool, err error) {
	ofResource := func(d *podresources.ContainerDevices) bool {
		return d.GetResourceName() == resource && len(d.GetDeviceIds()) > 0
	}
	for try := range goneAsks + 1 {
		answer, err := pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		switch {
		case err == nil:
			found = slices.ContainsFunc(answer.GetDevices(), ofResource)
		case try == 0: // Later a question without an answer changes nothing.
			return false, fmt.Errorf("allocatable resources: %w", err)
		}
		if !found || try == goneAsks {
			break
		}
		select {
		case <-ctx.Done():
			return found, nil
		case <-time.After(goneAfter / goneAsks):
		}
	}
	return found, nil
}
