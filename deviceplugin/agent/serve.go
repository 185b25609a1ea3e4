package agent

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/resource/rdma"
	"github.com/heddle-dev/heddle/deviceplugin/resource/sgpu"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

// NVMLPulse is one answer of a GPU to a cheap question.
type NVMLPulse = nvml.Pulse

func checkpoint(kubeletDir string) string {
	return filepath.Join(kubeletDir, "device-plugins", "kubelet_internal_checkpoint")
}

// sockets are those that a kubelet makes when it starts: of PodResources, and
// later of its device manager, which needs the container runtime.
func sockets(kubeletDir string) [2]string {
	return [2]string{
		filepath.Join(kubeletDir, "pod-resources", "kubelet.sock"),
		filepath.Join(kubeletDir, "device-plugins", "kubelet.sock"),
	}
}

// rdmaAt is the place of an RDMA resource in the configuration, -1 for none.
func rdmaAt(c *config.NodeConfig, name string) int {
	return slices.IndexFunc(c.RDMA.Resources, func(r config.RDMAResource) bool { return r.Name == name })
}

// serveHCAs makes a resource of HCAs and its plugin.
func (a *Agent) serveHCAs(name string) *served {
	r := rdma.New(rdma.Options{
		Name: name, Binder: a.binder,
	}, a.now.Load())
	return &served{plugin: a.plugin(name, r), refresh: r.Refresh, reason: r.Reason}
}

// serveGPUs makes a resource of whole GPUs or of MIG devices.
func (a *Agent) serveGPUs(name string) *served {
	options := gpu.Options{
		Name: name, Namer: a.binder, Binder: a.steer, Static: a.driver,
		InUse:    func() map[string]string { return a.binder.Lost(name) },
		Strategy: a.Strategy, Features: a.Features, Log: a.Log,
	}
	if a.API.Online() {
		options.Pods = a.steer
	}
	r := gpu.New(options, a.now.Load())
	return &served{
		plugin: a.plugin(name, a.modes.Gate(config.ModeNative, r)), refresh: r.Refresh, gpu: r,
		reason: func() string { return a.lacks(name, r) },
	}
}

func (a *Agent) plugin(name string, r server.Resource) *server.Plugin {
	_, counted := r.(*sgpu.Counted)
	return server.New(server.Options{
		Name: name, KubeletDir: a.KubeletDir, Resource: r,
		PodResources: a.pods, API: a.API, Takeover: a.Takeover, Changed: a.kubelet,
		SkipPreStart: counted, SkipPrefer: counted, Log: a.Log, Registerer: a.Registerer,
	})
}

// holdersEvery is how often the holders of devices are looked at while some wait
// for theirs.
const holdersEvery = 5 * time.Second

// run serves a resource until ctx ends. The first list that the kubelet gets has
// all devices that pods hold.
func (a *Agent) run(ctx context.Context, name string, p *server.Plugin) error {
	a.askHolders(ctx, name, p)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		ticker := time.NewTicker(holdersEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			if p.NeedsHolders() {
				a.askHolders(ctx, name, p)
			}
		}
	})
	group.Go(func() error {
		if err := p.Run(ctx); err != nil {
			return fmt.Errorf("serve %s: %w", name, err)
		}
		return nil
	})
	return group.Wait()
}

func (a *Agent) askHolders(ctx context.Context, name string, p *server.Plugin) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	h := server.Holders{Asked: time.Now()}
	h.IDs, h.Err = a.binder.Holders(ctx, name)
	p.SetHolders(h)
}

// watchPlugins reports registrations to the device state, and streams to HAMi,
// until ctx ends.
func (a *Agent) watchPlugins(ctx context.Context) error {
	registrations := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.kubelet:
		}
		now := 0
		for _, s := range a.all() {
			now += s.plugin.Status().Registrations
		}
		if now > registrations {
			a.binder.Wake()
		}
		registrations = now
		a.wakeBridge()
	}
}

// withoutCDI says why a node that shares cards serves no share of them; empty if
// it serves some, or shares none. CDI alone can bring cards that are chosen when
// a container starts.
func (a *Agent) withoutCDI() string {
	if a.Strategy != gpu.Envvar || !a.shares() {
		return ""
	}
	return "mode is sgpu, and no share is served: --device-list-strategy is envvar, which fixes a container's cards " +
		"before it starts, and a share's card is chosen then; shares take cdi"
}

// tellWithoutCDI says so in the log, once.
func (a *Agent) tellWithoutCDI(ctx context.Context) {
	why := a.withoutCDI()
	if why != "" && !a.toldWithoutCDI {
		a.Log.WarnContext(ctx, "shares of GPUs are not served", "reason", why)
	}
	a.toldWithoutCDI = why != ""
}

// shareNames are the resources of shared cards: slots first. There are none of
// them where no card is or was shared, nor without CDI.
func (a *Agent) shareNames(c *config.NodeConfig) []string {
	if !a.shares() || a.withoutCDI() != "" {
		return nil
	}
	names := []string{c.Resources.SGPU}
	if a.counts(c) {
		names = append(names, c.Resources.VCore, c.Resources.VMemory)
	}
	return names
}

// serveSlots makes a resource of the slots of shared GPUs.
func (a *Agent) serveSlots(name string) *served {
	options := sgpu.Options{Name: name, Binder: a.binder, Static: a.driver, Log: a.Log}
	if a.API.Online() {
		options.Pods = a.tenancy
	}
	r := sgpu.New(options, a.now.Load())
	return &served{
		plugin: a.plugin(name, a.modes.Gate(config.ModeSGPU, r)), refresh: r.Refresh, shared: true,
		reason: func() string { return a.lacksShares(name) },
	}
}

// serveCounted makes the resource of percents or of GiB of shared cards.
func (a *Agent) serveCounted(name string, c *config.NodeConfig) *served {
	unit := sgpu.Cores
	if name == c.Resources.VMemory {
		unit = sgpu.GiB
	}
	r := sgpu.NewCounted(unit, a.now.Load())
	return &served{
		plugin: a.plugin(name, r), refresh: r.Refresh, reason: func() string { return a.lacksShares(name) },
	}
}

// lacksShares says why not all of a resource of shared cards can be had.
func (a *Agent) lacksShares(name string) string {
	byID := map[string]string{}
	cards := a.now.Load().Shared
	for i := range cards {
		if cards[i].Unhealthy != "" {
			byID[cards[i].UUID] = cards[i].Unhealthy
		}
	}
	if why := faults(byID); why != "" || len(cards) > 0 {
		return why
	}
	return a.offersNone(name)
}

// lacks says why not all of a resource of GPUs can be had.
func (a *Agent) lacks(name string, r *gpu.Resource) string {
	if why := faults(r.Faults()); why != "" || len(r.Devices()) > 0 {
		return why
	}
	return a.offersNone(name)
}

// offersNone says why there is nothing of a resource.
func (a *Agent) offersNone(name string) string {
	for _, c := range capacity.Of(a.machine(), a.config()) {
		if c.Name == name {
			return c.Reason
		}
	}
	return "it is not configured any more"
}

func faults(byID map[string]string) string {
	parts := make([]string, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		parts = append(parts, id+": "+byID[id])
	}
	return strings.Join(parts, "; ")
}
