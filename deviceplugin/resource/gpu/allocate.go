package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The environment that NVIDIA's container runtime reads.
const (
	envVisible = "NVIDIA_VISIBLE_DEVICES"
	// visibleVoid makes that runtime add nothing of its own to what CDI does
	// ("void or empty or unset: nvidia-container-runtime will have the same
	// behavior as runc",
	// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html).
	visibleVoid = "void"
	envGDRCopy  = "NVIDIA_GDRCOPY"
	envGDS      = "NVIDIA_GDS"
	envIMEX     = "NVIDIA_IMEX_CHANNELS"
	enabled     = "enabled"
)

// Allocate implements [plugin.Allocator]. It fails for IDs that nobody
// advertised and for a name that cannot be recorded, and for nothing else:
// neither topology nor the health of other GPUs may fail a pod.
func (r *Resource) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	ids = slices.Sorted(slices.Values(ids))
	if err := r.check(ids); err != nil {
		return nil, err
	}
	// The name is recorded with both strategies: PreStart finds the container
	// by it.
	name, err := r.options.Allocator.Allocate(r.options.Name, ids)
	if err != nil {
		return nil, fmt.Errorf("name the devices: %w", err)
	}
	if r.options.Strategy == Envvar {
		return &v1beta1.ContainerAllocateResponse{Envs: r.environment(ids)}, nil
	}
	response := &v1beta1.ContainerAllocateResponse{
		Envs:       map[string]string{envVisible: visibleVoid},
		CdiDevices: []*v1beta1.CDIDevice{{Name: name}},
	}
	for _, static := range r.options.Static.Names(ids) {
		response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: static})
	}
	return response, nil
}

// check refuses IDs that this resource never had.
func (r *Resource) check(ids []string) error {
	if len(ids) == 0 {
		return errors.New("no device IDs")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range ids {
		if !r.seen[id] {
			return fmt.Errorf("device %q is not one of %s on this node", id, r.options.Name)
		}
		if i > 0 && ids[i-1] == id {
			return fmt.Errorf("device %q is named twice", id)
		}
	}
	return nil
}

// environment is what the older way needs.
func (r *Resource) environment(ids []string) map[string]string {
	env := map[string]string{envVisible: strings.Join(ids, ",")}
	if r.options.Features.GDRCopy {
		env[envGDRCopy] = enabled
	}
	if r.options.Features.GDS {
		env[envGDS] = enabled
	}
	if channels := r.options.Features.IMEXChannels; len(channels) > 0 {
		words := make([]string, len(channels))
		for i, channel := range channels {
			words[i] = strconv.Itoa(channel)
		}
		env[envIMEX] = strings.Join(words, ",")
	}
	return env
}

// PreStart implements [plugin.Allocator].
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	if r.options.Strategy != Envvar {
		if err := r.options.Static.Mend(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.options.Preparer.Prepare(ctx, r.options.Name, slices.Sorted(slices.Values(ids)))
}
