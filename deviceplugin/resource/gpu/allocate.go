package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Allocate implements [server.Allocator]. It fails for IDs that were never
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
		Envs:       r.hidden(),
		CdiDevices: []*v1beta1.CDIDevice{{Name: name}},
	}
	for _, driver := range r.options.Driver.Names(ids) {
		response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: driver})
	}
	return response, nil
}

// check rejects IDs that this resource never had.
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

// hidden is the environment by which no vendor's own runtime adds anything to
// what CDI brings.
func (r *Resource) hidden() map[string]string {
	env := map[string]string{}
	for _, v := range r.now.Load().vendors {
		maps.Copy(env, v.Environment.Hidden())
	}
	return env
}

// environment is what runtimes without CDI need, by vendor. An ID that has just
// left the snapshot is of the first vendor.
func (r *Resource) environment(ids []string) map[string]string {
	s, env := r.now.Load(), map[string]string{}
	for i, v := range s.vendors {
		own := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
			d, known := s.devices[id]
			return known && d.vendor != v || !known && i > 0
		})
		if len(own) > 0 {
			maps.Copy(env, v.Environment.Show(own, r.options.Features))
		}
	}
	return env
}

// PreStart implements [server.Allocator].
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	if r.options.Strategy != Envvar {
		if err := r.options.Driver.Restore(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.options.Preparer.Prepare(ctx, r.options.Name, slices.Sorted(slices.Values(ids)))
}
