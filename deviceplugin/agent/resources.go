package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
)

// askTimeout bounds a question that a round, or a resource that starts, waits for.
const askTimeout = time.Second

// resources are the served resources, each with its plugin.
type resources struct {
	*Options
	state    *devicestate.State
	driver   *cdi.DriverSpec
	pods     podresources.PodResourcesListerClient
	requests *requests
	// registered is set when a plugin registered or a kubelet follows its list.
	registered notify.Signal

	// What follows is the loop's alone: whether the Node's status has the resource of
	// percents, valid once asked, and how often plugins registered.
	counted, asked bool
	registrations  int

	mu      sync.Mutex
	running map[string]*running // by name; guarded by mu
}

// running holds a resource and its plugin.
type running struct {
	plugin   *server.Plugin
	resource refreshed
	kind     cdi.Kind
	// stop ends the plugin.
	stop context.CancelFunc
}

// refreshed is a resource that follows the inventory.
type refreshed interface {
	server.Resource
	Refresh(inv *inventory.Inventory)
}

// update serves the resources that are missing, gives all the inventory of a round, and
// returns those that the configuration calls for. What containers have is served too:
// without that they could not start again once the configuration has other names. GPUs
// are served once ready: the answer to Allocate names the devices that come with every
// GPU, which the driver's CDI spec lists, and the first list must be complete.
func (a *resources) update(ctx context.Context, group *errgroup.Group, r *publish.Round, ready bool) []string {
	a.askCounted(ctx, r)
	wanted, c := a.wanted(r), r.Inventory.Config
	recorded := a.state.View().Resources()
	for _, name := range slices.Concat(wanted, slices.Sorted(maps.Keys(recorded))) {
		kind := cdi.GPU
		switch had := recorded[name]; {
		case c.RDMA.Resource(name) != nil || had == cdi.RDMA:
			kind = cdi.RDMA
		case name == c.Resources.SGPU || had == cdi.SGPU:
			kind = cdi.SGPU
		case slices.Contains(a.shareNames(r), name):
			kind = publish.Counted
		}
		if s := a.all()[name]; s != nil {
			// Another kind takes the name when the kubelet has nothing left of this one.
			if s.kind != kind && len(s.plugin.IDs()) == 0 {
				s.stop()
			}
			continue
		}
		if kind == cdi.RDMA || ready {
			a.begin(ctx, group, name, a.serve(name, kind, r.Inventory))
		}
	}
	for name, s := range a.all() {
		if s.kind == cdi.GPU {
			s.plugin.SetClaimed(claimed(r.Inventory, name))
		}
		s.resource.Refresh(r.Inventory)
	}
	return wanted
}

// wanted returns the resources that the configuration calls for on this machine.
func (a *resources) wanted(r *publish.Round) []string {
	names := append(resource.GPUNames(r.Inventory), a.shareNames(r)...)
	for i := range r.Inventory.Config.RDMA.Resources {
		names = append(names, r.Inventory.Config.RDMA.Resources[i].Name)
	}
	return names
}

// shareNames returns the resources of shared GPUs: replicas first. It returns nil where no
// GPU is or was shared.
func (a *resources) shareNames(r *publish.Round) []string {
	if !r.Shares() {
		return nil
	}
	names := r.Inventory.Config.Resources
	if !a.counts(r.Inventory) {
		return []string{names.SGPU}
	}
	return []string{names.SGPU, names.VCore, names.VMemory}
}

// counts reports whether percents and GiB of shared GPUs are served: as configured, or
// because they once were. A pod that names a resource which the kubelet does not know is
// admitted without it. One that it knows and has no healthy device of, which is how a
// resource is withdrawn, it fails for good; and the Node's status names it for ever
// after, by which the kubelet does the same. So what was counted once goes on being
// counted, which does no harm to schedulers that do not look at it.
func (a *resources) counts(inv *inventory.Inventory) bool {
	return inv.Config.AdvertisesShares() || a.counted || a.all()[inv.Config.Resources.VCore] != nil
}

// askCounted asks the Node, once, whether it counted percents before this process began.
func (a *resources) askCounted(ctx context.Context, r *publish.Round) {
	if !a.API.Online() || a.asked || !r.Sharing || a.counts(r.Inventory) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	node, err := a.API.ReadNode(ctx)
	if err != nil {
		a.Log.DebugContext(ctx, "capacity of the node is not known yet", "err", err)
		return
	}
	_, a.counted = node.Status.Capacity[corev1.ResourceName(r.Inventory.Config.Resources.VCore)]
	a.asked = true
}

// serve makes a resource and its plugin.
func (a *resources) serve(name string, kind cdi.Kind, inv *inventory.Inventory) *running {
	options := resource.Options{Name: name, State: a.state, Driver: a.driver, Log: a.Log}
	s := &running{kind: kind}
	switch kind {
	case cdi.RDMA:
		options.Driver = nil
		s.resource = resource.NewHCAs(options, inv)
	case cdi.SGPU:
		s.resource = scheduledShares{resource.NewShares(options, inv), a.requests}
	case publish.Counted:
		unit := resource.Cores
		if name == inv.Config.Resources.VMemory {
			unit = resource.Memory
		}
		s.resource = resource.NewCounted(unit, inv)
	default:
		s.resource = selectedGPUs{resource.NewGPUs(resource.GPUOptions{
			Options: options, Strategy: a.Strategy, Features: a.Features, Vendors: a.Vendors,
		}, inv), a.requests}
	}
	s.plugin = server.New(server.Options{
		Name: name, KubeletDir: a.KubeletDir, Resource: s.resource,
		PodResources: a.pods, API: a.API, Changed: a.registered,
		CountedOnly: kind == publish.Counted, Log: a.Log, Registerer: a.Registerer,
	})
	return s
}

// begin serves a resource until ctx ends, or its name becomes another kind's. The first
// list that the kubelet gets has all devices that pods hold.
func (a *resources) begin(ctx context.Context, group *errgroup.Group, name string, s *running) {
	own, stop := context.WithCancel(ctx)
	s.stop = stop
	a.mu.Lock()
	a.running[name] = s
	a.mu.Unlock()
	group.Go(func() error {
		defer stop()
		a.askHolders(own, name, s.plugin)
		err := s.plugin.Run(own)
		a.mu.Lock()
		defer a.mu.Unlock()
		if ctx.Err() == nil {
			delete(a.running, name) // The next round serves what it is now.
		}
		if err != nil {
			return fmt.Errorf("serve %s: %w", name, err)
		}
		return nil
	})
}

func (a *resources) askHolders(ctx context.Context, name string, p *server.Plugin) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := time.Now()
	held, err := a.state.Holders(ctx, name)
	p.SetHolders(held, asked, err)
}

// all returns the resources that are served, by name.
func (a *resources) all() map[string]*running {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.running)
}

// served returns the resources as they are at the moment.
func (a *resources) served() map[string]publish.Served {
	all := map[string]publish.Served{}
	for name, s := range a.all() {
		now := publish.Served{Kind: s.kind, Status: s.plugin.Status()}
		switch s := s.resource.(type) {
		case selectedGPUs:
			now.GPUs = s.Snapshot()
		case *resource.HCAs:
			now.Reason = s.Reason()
		}
		all[name] = now
	}
	return all
}

// elsewhere names who has a GPU under another resource, or cut another way: a container,
// or the kubelet, which has been offered it under that name and may be about to give it
// to a pod. That list drops it once no pod has it, after a minute.
func (a *resources) elsewhere(inv *inventory.Inventory) map[string]map[string]string {
	served, view := a.all(), a.state.View()
	names, all := slices.AppendSeq(resource.GPUNames(inv), maps.Keys(served)), map[string]map[string]string{}
	for name, kind := range view.Resources() {
		if kind == cdi.GPU {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if s := served[name]; s != nil && s.kind != cdi.GPU {
			continue
		}
		all[name] = map[string]string{}
		for id := range inv.GPUs {
			if holder := view.Elsewhere(name, id, inv.Machine.ParentGPU(id)); holder != "" {
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

// listedAs returns the GPUs that the kubelet has under other resources than name, with one of
// those.
func listedAs(served map[string]*running, name string) map[string]string {
	all := map[string]string{}
	for other, s := range served {
		if other == name || s.kind != cdi.GPU {
			continue
		}
		for _, id := range s.plugin.IDs() {
			all[id] = other
		}
	}
	return all
}

// noteRegistrations tells the device state of a registration.
func (a *resources) noteRegistrations() {
	now := 0
	for _, s := range a.all() {
		now += s.plugin.Status().Registrations
	}
	if now > a.registrations {
		a.state.Registered()
	}
	a.registrations = now
}

const (
	// observeTimeout bounds one observation of the kubelet.
	observeTimeout = 2 * time.Second
	// holdersEvery is the interval between checks of the holders of devices while some wait for
	// theirs.
	holdersEvery = 5 * time.Second
	// kubeletPatience is longer than a kubelet takes to start again.
	kubeletPatience = time.Minute
)

// watchKubelet has every resource look for a kubelet, and PodResources looked at again,
// as soon as the kubelet makes the socket for plugins, until ctx ends: it serves
// PodResources before that. One watch serves all resources: inotify instances are few,
// and a watch's goroutine has a stack of 128 KiB.
func (a *Agent) watchKubelet(ctx context.Context) error {
	seen := notify.New()
	var watching sync.WaitGroup
	watching.Go(func() { server.WatchDir(ctx, a.KubeletDir, seen, a.Log) })
	defer watching.Wait()
	absent := time.NewTimer(a.patience)
	defer absent.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-absent.C:
			if socket := server.KubeletSocket(a.KubeletDir); !server.IsSocket(socket) {
				message := "no kubelet listens on " + socket + ": the node offers no devices"
				a.Log.Warn("kubelet.sock is absent", "socket", socket, "for", a.patience)
				a.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventKubeletAbsent, Message: message})
			}
		case <-seen:
			absent.Reset(a.patience)
			for _, s := range a.resources.all() {
				s.plugin.Retry()
			}
			a.kubeletStarted.Notify()
		}
	}
}

// watchHeld shows the mode tracker what the kubelet offers and pods hold, while a mode is pending, and asks for the
// holders of devices that wait for theirs, until ctx ends.
func (a *Agent) watchHeld(ctx context.Context) error {
	ticker := time.NewTicker(holdersEvery)
	defer ticker.Stop()
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.state.LookAgain(ctx)
			for name, s := range a.resources.all() {
				if s.plugin.NeedsHolders() {
					a.resources.askHolders(ctx, name, s.plugin)
				}
			}
			continue
		case <-a.modes.Pending():
		case <-a.kubeletStarted:
			if next == nil {
				continue // Nothing is pending.
			}
		case <-next:
		}
		next = nil
		if again := a.modes.Observe(a.observe(ctx)); again > 0 {
			next = time.After(again)
		}
	}
}

// observe asks the kubelet what it offers, and then what pods hold.
func (a *Agent) observe(ctx context.Context) *gpumode.Observation {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	o := &gpumode.Observation{Asked: time.Now()}
	answer, err := a.pods.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return &gpumode.Observation{Err: fmt.Errorf("kubelet PodResources, allocatable: %w", err)}
	}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			o.Offered = append(o.Offered, inventory.Held{Resource: d.GetResourceName(), ID: id})
		}
	}
	// Before what pods hold: a call that ends in between has recorded its devices.
	for name, s := range a.resources.all() {
		for _, id := range s.plugin.InFlight() {
			o.Held = append(o.Held, inventory.Held{Resource: name, ID: id, Pod: "a pod that is being admitted"})
		}
	}
	var claimed []inventory.Held
	if a.claims != nil && a.modes.Any(config.ModeClaims) {
		var offered []inventory.Held
		if offered, claimed, err = a.claims.Observe(ctx); err != nil {
			return &gpumode.Observation{Err: err}
		}
		o.Offered = append(o.Offered, offered...)
	}
	held, err := a.state.Held(ctx)
	o.Held, o.Err = slices.Concat(o.Held, claimed, held), err
	return o
}
