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
	// unnoticed is how long a kubelet may show the devices of a plugin that has ended:
	// heddle's own, when this process has taken over from another one. In that time it
	// is asked so many times more; it answers a hundred questions a second.
	unnoticed     = 300 * time.Millisecond
	unnoticedAsks = 3
	// maxSockets bounds what is looked at; a node has a dozen plugins.
	maxSockets = 64
)

// Conflict names another device plugin of the resource on this node, empty for
// none. In this order it finds: a socket in plugins_registry that names the
// resource; a socket in device-plugins that another process listens on and that
// is named after the resource; devices that the kubelet has without any socket of
// heddle being alive (pods nil: not looked at). It never watches another plugin's
// devices: some hand a change to one stream only.
func Conflict(
	ctx context.Context, kubeletDir, resource string, pods podresources.PodResourcesListerClient,
) (string, error) {
	owner, err := registered(ctx, filepath.Join(kubeletDir, registryDir), resource)
	if owner != "" {
		return owner, nil
	}
	others, mine, listErr := neighbors(ctx, filepath.Join(kubeletDir, pluginDir), resource)
	if err = errors.Join(err, listErr); err != nil {
		return "", err
	}
	for _, name := range others {
		if serves(name, resource) {
			return pluginDir + "/" + name, nil
		}
	}
	if mine || pods == nil {
		return "", nil
	}
	n, err := leftAllocatable(ctx, pods, resource)
	if err != nil || n == 0 {
		return "", err
	}
	slices.Sort(others)
	return fmt.Sprintf("another device plugin with %d devices (sockets: %s)", n, strings.Join(others, ", ")), nil
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
			// A stale socket, or a plugin that is busy: no claim.
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

// neighbors lists the live sockets of other plugins, and reports whether one of
// the resource's own is alive.
func neighbors(ctx context.Context, dir, resource string) (others []string, mine bool, err error) {
	names, err := sockets(dir)
	if err != nil {
		return nil, false, err
	}
	for _, name := range names {
		own := strings.HasPrefix(name, socketPrefix(resource))
		if name == kubeletSocket || strings.HasPrefix(name, namePrefix) && !own || !alive(ctx, filepath.Join(dir, name)) {
			continue
		}
		if own {
			mine = true
		} else {
			others = append(others, name)
		}
	}
	return others, mine, nil
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

// serves reports whether a socket is named after the resource, as common plugins
// name theirs: nvidia-gpu.sock for nvidia.com/gpu, amd.com_gpu.sock,
// hca_shared_devices_a.sock for rdma/hca_shared_devices_a.
func serves(file, resource string) bool {
	domain, name, _ := strings.Cut(resource, "/")
	vendor, _, _ := strings.Cut(domain, ".")
	base := strings.ToLower(strings.TrimSuffix(file, filepath.Ext(file)))
	front, ok := strings.CutSuffix(base, strings.ToLower(name))
	if !ok {
		return false
	}
	switch strings.TrimRight(front, "-_.") {
	case "":
		return true
	case front:
		// No separator: gpu is not the end of sgpu.
		return false
	case domain, vendor:
		return true
	default:
		return false
	}
}

// leftAllocatable is what is left of allocatable once the kubelet has noticed the end of a
// plugin. A question without an answer changes nothing.
func leftAllocatable(ctx context.Context, pods podresources.PodResourcesListerClient, resource string) (int, error) {
	n, err := allocatable(ctx, pods, resource)
	for range unnoticedAsks {
		if err != nil || n == 0 {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, nil
		case <-time.After(unnoticed / unnoticedAsks):
		}
		if again, err := allocatable(ctx, pods, resource); err == nil {
			n = again
		}
	}
	return n, nil
}

// allocatable counts the healthy devices that the kubelet has of a resource.
func allocatable(ctx context.Context, pods podresources.PodResourcesListerClient, resource string) (int, error) {
	resp, err := pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("allocatable resources: %w", err)
	}
	ids := map[string]bool{}
	for _, d := range resp.GetDevices() {
		if d.GetResourceName() != resource {
			continue
		}
		for _, id := range d.GetDeviceIds() {
			ids[id] = true
		}
	}
	return len(ids), nil
}
