package kubelet

import (
	"context"
	"maps"
	"slices"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// State is one resource as the kubelet knows it.
type State struct {
	// Connected counts the plugins that serve it now.
	Connected int
	// Registrations and Updates (ListAndWatch responses) are counted over all
	// restarts of the kubelet.
	Registrations, Updates int
	// Healthy and Unhealthy are device IDs, sorted: allocatable is the number
	// of the first, capacity that of both.
	Healthy, Unhealthy []string
	// Allocated are the IDs that pods hold, sorted.
	Allocated []string
}

// State reports what the kubelet knows of a resource.
func (k *Kubelet) State(resource string) State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stateLocked(resource)
}

func (k *Kubelet) stateLocked(resource string) State {
	return State{
		Connected:     len(k.store[resource]),
		Registrations: k.registrations[resource],
		Updates:       k.updates[resource],
		Healthy:       slices.Sorted(maps.Keys(k.healthy[resource])),
		Unhealthy:     slices.Sorted(maps.Keys(k.unhealthy[resource])),
		Allocated:     slices.Sorted(maps.Keys(k.used[resource])),
	}
}

// Devices reports the last list that a plugin sent for a resource, by ID.
func (k *Kubelet) Devices(resource string) map[string]*v1beta1.Device {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.devices[resource])
}

// Wait blocks until the state of a resource satisfies ok, and fails the test
// when ctx ends first.
func (k *Kubelet) Wait(ctx context.Context, resource string, ok func(State) bool) State {
	k.tb.Helper()
	for {
		k.mu.Lock()
		state, changed := k.stateLocked(resource), k.changed
		k.mu.Unlock()
		if ok(state) {
			return state
		}
		select {
		case <-changed:
		case <-ctx.Done():
			k.tb.Fatalf("%s did not come to the wanted state: %v; it is %+v", resource, ctx.Err(), state)
		}
	}
}

// noteLocked wakes those who Wait.
func (k *Kubelet) noteLocked() {
	close(k.changed)
	k.changed = make(chan struct{})
}
