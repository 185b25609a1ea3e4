package agent

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/plugin"
	"github.com/heddle-dev/heddle/deviceplugin/rdma"
	"github.com/heddle-dev/heddle/discovery/nvml"
)

// NVMLPulse is one answer of a GPU to a cheap question.
type NVMLPulse = nvml.Pulse

// PodResourcesClient is the kubelet's account of devices.
type PodResourcesClient interface {
	binder.PodResources
	GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest, ...grpc.CallOption) (
		*podresources.AllocatableResourcesResponse, error)
}

func checkpoint(kubeletDir string) string {
	return filepath.Join(kubeletDir, "device-plugins", "kubelet_internal_checkpoint")
}

// serve makes a resource and its plugin.
func (a *Agent) serve(name string, c *config.NodeConfig) *served {
	rdmaResource := slices.ContainsFunc(c.RDMA.Resources, func(r config.RDMAResource) bool { return r.Name == name })
	if rdmaResource {
		r := rdma.New(rdma.Options{
			Name: name, Machine: a.machine, Config: a.config, Against: a.against, Binder: a.binder,
		})
		return &served{plugin: a.plugin(name, r), refresh: r.Refresh, reason: r.Reason}
	}
	r := gpu.New(gpu.Options{
		Name: name, Machine: a.machine, Config: a.config, Health: a.healthOf,
		Namer: a.binder, Binder: a.binder, Static: a.driver,
		Strategy: a.Strategy, Features: a.Features, Log: a.Log,
	})
	if name == c.Resources.GPU {
		a.mu.Lock()
		a.whole = r
		a.mu.Unlock()
	}
	return &served{plugin: a.plugin(name, r), refresh: r.Refresh, reason: func() string { return faults(r.Faults()) }}
}

func (a *Agent) plugin(name string, r plugin.Resource) *plugin.Plugin {
	return plugin.New(plugin.Options{
		Name: name, KubeletDir: a.KubeletDir, Resource: r,
		Holders: func(ctx context.Context) (map[string]bool, error) { return a.binder.Holders(ctx, name) },
		Claimed: plugin.Rival(a.KubeletDir, name, a.pods), Takeover: a.Takeover,
		Log: a.Log, Registerer: a.Registerer,
	})
}

// healthOf is the verdict on a GPU, or on the GPU that a MIG device is cut from.
func (a *Agent) healthOf(uuid string) (healthy bool, reason string) {
	s := a.monitor.Snapshot()
	if state, known := s.GPUs[uuid]; known {
		return state.Healthy, state.Reason
	}
	if parent := parentOf(s.Machine, uuid); parent != "" {
		state := s.GPU(parent)
		return state.Healthy, state.Reason
	}
	return true, ""
}

func parentOf(m *machine.Machine, mig string) string {
	if m == nil {
		return ""
	}
	for i := range m.GPUs {
		for _, d := range m.GPUs[i].MIG.Devices {
			if d.UUID == mig {
				return m.GPUs[i].UUID
			}
		}
	}
	return ""
}

// against says why an HCA is unhealthy, "" if it is well.
func (a *Agent) against(h *machine.HCA) string {
	s := a.monitor.Snapshot()
	if s.Machine == nil {
		return ""
	}
	for i, id := range s.Machine.HCAIDs() {
		if s.Machine.HCAs[i].Name == h.Name {
			return s.HCA(id).Reason
		}
	}
	return ""
}

func faults(byID map[string]string) string {
	ids := make([]string, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	parts := make([]string, 0, len(ids))
	for _, id := range ids {
		parts = append(parts, id+": "+byID[id])
	}
	return strings.Join(parts, "; ")
}
