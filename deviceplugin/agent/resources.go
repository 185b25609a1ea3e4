package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/resource/rdma"
	"github.com/heddle-dev/heddle/deviceplugin/resource/sgpu"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/internal/notify"
)

// rdmaAt is the place of an RDMA resource in the configuration, -1 for none.
func rdmaAt(c *config.NodeConfig, name string) int {
	return slices.IndexFunc(c.RDMA.Resources, func(r config.RDMAResource) bool { return r.Name == name })
}

// served is one resource and its plugin.
type served struct {
	plugin   *server.Plugin
	resource refreshed
	// gpu is the resource if its devices are GPUs; nil for others.
	gpu  *gpu.Resource
	past past
	kind kind
	// stop ends the plugin.
	stop context.CancelFunc
}

// kind is what a resource's devices are.
type kind string

const (
	kindHCAs     kind = "HCAs"
	kindReplicas kind = "replicas" // of shared GPUs
	kindCounted  kind = "counted"  // percents or GiB of shared GPUs
	kindGPUs     kind = "GPUs"     // whole ones, or MIG devices
)

// refreshed is a resource that follows the inventory.
type refreshed interface {
	server.Resource
	Refresh(inv *inventory.Inventory)
}

// resources are those that are served.
type resources struct {
	*core
	pods      podresources.PodResourcesListerClient
	selectors *selectors
	shares    *shares
	// registered is set when a plugin registered or a kubelet follows its list.
	registered notify.Signal

	// What follows is the loop's alone: that no shares are served was logged;
	// whether the Node's status has the resource of percents, valid once asked.
	loggedWithoutCDI, counted, asked bool

	mu     sync.Mutex // guards what follows
	served map[string]*served
	wanted []string
}

func newResources(
	c *core, pods podresources.PodResourcesListerClient, selectors *selectors, shares *shares,
) *resources {
	r := &resources{
		core: c, pods: pods, selectors: selectors, shares: shares, registered: notify.New(), served: map[string]*served{},
	}
	r.wanted = r.wantedBy(c.now.Load())
	return r
}

// update serves the resources that are missing, and gives all the inventory. What
// containers have is served too: without that they could not start again once the
// configuration has other names.
func (a *resources) update(ctx context.Context, group *errgroup.Group, inv *inventory.Inventory) {
	a.askCounted(ctx, inv)
	a.logWithoutCDI(ctx)
	wanted := a.wantedBy(inv)
	a.mu.Lock()
	a.wanted = wanted
	a.mu.Unlock()
	gpus, hcas, slots := a.state.View().Resources()
	for _, name := range slices.Concat(wanted, gpus, hcas, slots) {
		kind := kindGPUs
		switch {
		case rdmaAt(inv.Config, name) >= 0 || slices.Contains(hcas, name):
			kind = kindHCAs
		case name == inv.Config.Resources.SGPU || slices.Contains(slots, name):
			kind = kindReplicas
		case slices.Contains(a.shareNames(inv), name):
			kind = kindCounted
		}
		if s := a.all()[name]; s != nil {
			// Another kind takes the name when the kubelet has nothing left of this one.
			if s.kind != kind && len(s.plugin.IDs()) == 0 {
				s.stop()
			}
			continue
		}
		// The answer to Allocate names the devices that come with every GPU, which
		// the driver's CDI spec lists; and the first list must be complete.
		if kind == kindHCAs || a.driverKnown() && a.modes.Known() {
			a.begin(ctx, group, name, a.newServed(name, kind, inv))
		}
	}
	for _, s := range a.all() {
		s.resource.Refresh(inv)
	}
}

func (a *resources) newServed(name string, kind kind, inv *inventory.Inventory) *served {
	var s *served
	switch kind {
	case kindHCAs:
		s = a.serve(name, "", rdma.New(resource.Options{Name: name, State: a.state, Log: a.Log}, inv))
	case kindReplicas:
		s = a.serve(name, config.ModeSGPU, a.newShared(name, inv))
	case kindCounted:
		s = a.serve(name, "", newCounted(name, inv))
	case kindGPUs:
		s = a.serveGPUs(name, inv)
	}
	s.kind = kind
	return s
}

// begin serves a resource until ctx ends, or its name becomes another kind's.
func (a *resources) begin(ctx context.Context, group *errgroup.Group, name string, s *served) {
	own, stop := context.WithCancel(ctx)
	s.stop = stop
	a.mu.Lock()
	a.served[name] = s
	a.mu.Unlock()
	group.Go(func() error {
		defer stop()
		err := a.run(own, name, s.plugin)
		a.mu.Lock()
		defer a.mu.Unlock()
		if ctx.Err() == nil {
			delete(a.served, name) // The next round serves what it is now.
		}
		return err
	})
}

// all are the resources that are served, by name.
func (a *resources) all() map[string]*served {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.served)
}

// retry has all resources look at the kubelet's directory.
func (a *resources) retry() {
	for _, s := range a.all() {
		s.plugin.Retry()
	}
}

// wantedNow are the resources that the configuration of the last round calls for.
func (a *resources) wantedNow() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wanted
}

// wantedBy are the resources that the configuration calls for on this machine.
func (a *resources) wantedBy(inv *inventory.Inventory) []string {
	names := append(gpu.Names(inv), a.shareNames(inv)...)
	for i := range inv.Config.RDMA.Resources {
		names = append(names, inv.Config.RDMA.Resources[i].Name)
	}
	return names
}

// serveGPUs serves a resource of whole GPUs or of MIG devices.
func (a *resources) serveGPUs(name string, inv *inventory.Inventory) *served {
	r := gpu.New(gpu.Options{
		Options:  resource.Options{Name: name, State: a.state, Driver: a.driver, Log: a.Log},
		Strategy: a.Strategy, Features: a.Features, Vendors: a.Vendors,
	}, inv)
	var selected refreshed = r
	if a.API.Online() {
		selected = selectedGPUs{r, a.selectors}
	}
	s := a.serve(name, config.ModeNative, selected)
	s.gpu = r
	return s
}

// newShared makes a resource of the replicas of shared GPUs.
func (a *resources) newShared(name string, inv *inventory.Inventory) refreshed {
	r := sgpu.New(resource.Options{Name: name, State: a.state, Driver: a.driver, Log: a.Log}, inv)
	if a.API.Online() {
		return expectedShares{r, a.shares}
	}
	return r
}

// newCounted makes the resource of percents or of GiB of shared GPUs.
func newCounted(name string, inv *inventory.Inventory) *sgpu.Counted {
	if name == inv.Config.Resources.VMemory {
		return sgpu.NewCounted(sgpu.Memory, inv)
	}
	return sgpu.NewCounted(sgpu.Cores, inv)
}

// serve makes the plugin of a resource. Calls for GPUs are counted by their mode.
func (a *resources) serve(name string, in config.Mode, r refreshed) *served {
	_, counted := r.(*sgpu.Counted)
	options := server.Options{
		Name: name, KubeletDir: a.KubeletDir, Resource: r,
		PodResources: a.pods, API: a.API, Takeover: a.Takeover, Changed: a.registered,
		CountedOnly: counted, Log: a.Log, Registerer: a.Registerer,
	}
	if in != "" {
		options.Resource = a.modes.Gate(in, r)
	}
	return &served{plugin: server.New(options), resource: r}
}

// holdersEvery is how often the holders of devices are looked at while some wait
// for theirs.
const holdersEvery = 5 * time.Second

// run serves a resource until ctx ends. The first list that the kubelet gets has
// all devices that pods hold.
func (a *resources) run(ctx context.Context, name string, p *server.Plugin) error {
	a.askHolders(ctx, name, p)
	if err := p.Run(ctx); err != nil {
		return fmt.Errorf("serve %s: %w", name, err)
	}
	return nil
}

func (a *resources) askHolders(ctx context.Context, name string, p *server.Plugin) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := time.Now()
	held, err := a.state.Holders(ctx, name)
	p.SetHolders(held, asked, err)
}

// watch reports registrations to the device state, and streams to HAMi, and asks
// for the holders of devices that wait for theirs, until ctx ends.
func (a *resources) watch(ctx context.Context, h *hamiNode) error {
	ticker := time.NewTicker(holdersEvery)
	defer ticker.Stop()
	for registrations := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			for name, s := range a.all() {
				if s.plugin.NeedsHolders() {
					a.askHolders(ctx, name, s.plugin)
				}
			}
		case <-a.registered:
			now := 0
			for _, s := range a.all() {
				now += s.plugin.Status().Registrations
			}
			if now > registrations {
				a.state.Registered()
			}
			registrations = now
			h.setOpen(a.sharesFollowed())
		}
	}
}

// reason is why not all of a resource can be had; empty if all can.
func (a *resources) reason(name string, s *served) string {
	inv := a.now.Load()
	byID, some := map[string]string{}, len(inv.Shared) > 0
	switch r := s.resource.(type) {
	case *rdma.Resource:
		return r.Reason()
	case *gpu.Resource, selectedGPUs:
		byID, some = s.gpu.Faults(), len(s.gpu.Devices()) > 0
	default:
		for i := range inv.Shared {
			if reason := inv.Shared[i].Unhealthy; reason != "" {
				byID[inv.Shared[i].UUID] = reason
			}
		}
	}
	if reason := joinFaults(byID); reason != "" || some {
		return reason
	}
	for _, r := range capacity.Of(inv.Machine, inv.Config, a.Vendors) {
		if r.Name == name {
			return r.Reason
		}
	}
	return "it is not configured any more"
}

func joinFaults(byID map[string]string) string {
	parts := make([]string, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		parts = append(parts, id+": "+byID[id])
	}
	return strings.Join(parts, "; ")
}

// elsewhere names who has a GPU under another resource, or cut another way: a container, or the
// kubelet, which has been offered it under that name and may be about to give
// it to a pod. That list drops it once no pod has it, after a minute.
func (a *resources) elsewhere(inv *inventory.Inventory) map[string]map[string]string {
	served := a.all()
	view := a.state.View()
	recorded, _, _ := view.Resources()
	all := map[string]map[string]string{}
	for _, name := range slices.Concat(gpu.Names(inv), recorded, slices.Collect(maps.Keys(served))) {
		if s := served[name]; s != nil && s.gpu == nil {
			continue
		}
		all[name] = map[string]string{}
		for id := range inv.GPUs {
			if holder := view.Elsewhere(name, id, inv.ParentOf(id)); holder != "" {
				all[name][id] = holder
			}
		}
		for id, other := range listedAs(served, name) {
			if all[name][id] == "" {
				all[name][id] = "the kubelet has it as " + other
			}
		}
	}
	return all
}

// listedAs are the GPUs that the kubelet has under other resources than name, with
// one of those.
func listedAs(served map[string]*served, name string) map[string]string {
	all := map[string]string{}
	for other, s := range served {
		if other == name || s.gpu == nil {
			continue
		}
		for _, id := range s.plugin.IDs() {
			all[id] = other
		}
	}
	return all
}

// resend makes the kubelet write its checkpoint: a list of any resource will do.
func (a *resources) resend() {
	for _, s := range a.all() {
		if s.plugin.Status().Registered {
			s.plugin.Resend()
			return
		}
	}
}

// sharesFollowed reports whether the kubelet follows the list of shares.
func (a *resources) sharesFollowed() bool {
	s := a.all()[a.config().Resources.SGPU]
	if s == nil {
		return false
	}
	status := s.plugin.Status()
	return status.Registered && status.Streams > 0
}
