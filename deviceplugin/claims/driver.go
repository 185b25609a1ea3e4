// Package claims is heddle's DRA driver on a node: it publishes the devices that claims get, and prepares the
// claims of pods that start.
//
// The library has the kubelet's sockets and the ResourceSlices. Which devices there are is of
// deviceplugin/claims/pool, whether a claim may have them of deviceplugin/allocate, and what a container gets of
// deviceplugin/devicestate. A driver that cannot reach the API server holds nothing else up.
package claims

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/heddle-dev/heddle/api/allocation"
	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Options configure a Driver.
type Options struct {
	NodeName string
	// Client is for claims and ResourceSlices.
	Client kubernetes.Interface
	// Dir is the directory of the driver's socket, at the same path on the host, and KubeletDir the kubelet's
	// --root-dir, below which it registers.
	Dir, KubeletDir string
	State           *devicestate.State
	// Names returns the CDI devices of GPUs in the driver's spec.
	Names func(uuids []string) []string
	Log   *slog.Logger
}

// Driver is the DRA driver of one node. Its methods are safe for concurrent use.
type Driver struct {
	Options
	due    notify.Signal
	health *watchers
	faults report.Faults
	// seen is Observe's.
	seen observation

	mu sync.Mutex // guards all below
	// pool is the node's of the last round, and inventory what it was made of.
	pool      *pool.Pool
	inventory *inventory.Inventory
	// plain is set once the API server has shown that it knows no counters, shares or taints of devices.
	plain bool
}

// What can be wrong.
const (
	faultStart   = "claims-driver"
	faultPublish = "claims-slices"
	faultKubelet = "claims-kubelet"
)

// New makes a driver. Run serves it.
func New(o Options) *Driver {
	return &Driver{Options: o, due: notify.New(), health: newWatchers(), faults: report.Faults{Log: o.Log}}
}

// Update takes the node as it is now. It returns at once.
func (d *Driver) Update(inv *inventory.Inventory) {
	d.mu.Lock()
	last := d.inventory
	d.mu.Unlock()
	if last != nil && reflect.DeepEqual(last, inv) { // As after most claims.
		d.due.Notify()
		return
	}
	next := pool.Of(inv)
	d.mu.Lock()
	d.pool, d.inventory = next, inv
	d.mu.Unlock()
	d.due.Notify()
	d.health.changed()
}

// Problems returns what is wrong now, and [report.ClaimsPlain] on an old API server.
func (d *Driver) Problems() []report.Problem {
	all := d.faults.Problems()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.plain {
		all = append(all, report.Problem{Name: report.ClaimsPlain, Reason: "the API server drops fields of ResourceSlices: " +
			"claims get whole GPUs, MIG devices and HCAs, without pairs, shares and taints"})
	}
	return all
}

// Run serves the driver until ctx ends. The specs of prepared claims are back before the kubelet can call.
func (d *Driver) Run(ctx context.Context) error {
	select { // The first round names the devices.
	case <-ctx.Done():
		return nil
	case <-d.due:
	}
	_ = d.State.RestoreClaims(ctx, true) // The state reports it, and it is tried again below.
	// The device plugin serves on while the driver cannot.
	var helper *kubeletplugin.Helper
	if !d.retry(ctx, faultStart, func() (err error) {
		if helper, err = d.start(ctx); err != nil {
			err = fmt.Errorf("start the DRA driver: %w", err)
		}
		return err
	}) {
		return nil
	}
	defer helper.Stop()
	if !d.retry(ctx, faultPublish, func() error { return d.probe(ctx) }) {
		return nil
	}
	d.publish(ctx, helper)
	return nil
}

func (d *Driver) start(ctx context.Context) (*kubeletplugin.Helper, error) {
	if err := os.MkdirAll(d.Dir, 0o750); err != nil {
		return nil, err
	}
	return kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(api.Driver), kubeletplugin.NodeName(d.NodeName), kubeletplugin.KubeClient(d.Client),
		kubeletplugin.PluginDataDirectoryPath(d.Dir),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.KubeletDir, "plugins_registry")),
		kubeletplugin.Serialize(false), // A claim that waits for its GPU holds up no other; the State serializes.
	)
}

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d *Driver) PrepareResourceClaims(
	ctx context.Context, all []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range all {
		results[claim.UID] = d.prepare(ctx, claim)
	}
	return results, nil
}

func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	wanted, err := d.claim(claim)
	if err != nil {
		return kubeletplugin.PrepareResult{Err: err}
	}
	prepared, err := d.State.PrepareClaim(ctx, wanted)
	if err != nil {
		return kubeletplugin.PrepareResult{Err: err}
	}
	var result kubeletplugin.PrepareResult
	for i := range prepared.Devices {
		p := &prepared.Devices[i]
		device := kubeletplugin.Device{
			Requests: []string{p.Request}, PoolName: p.Pool, DeviceName: p.Device,
			CDIDeviceIDs: []string{p.CDIName().String()},
		}
		if p.GPU != "" {
			device.CDIDeviceIDs = append(d.Names([]string{p.GPU, cdi.CommonDevice}), device.CDIDeviceIDs...)
		}
		if p.ShareID != "" {
			id := types.UID(p.ShareID)
			device.ShareID = &id
		}
		result.Devices = append(result.Devices, device)
	}
	return result
}

// claim returns the devices of this node that a claim was allocated, with their parameters.
func (d *Driver) claim(claim *resourceapi.ResourceClaim) (*allocate.Claim, error) {
	d.mu.Lock()
	devices, inv := d.pool, d.inventory
	d.mu.Unlock()
	c := allocate.NewClaim(string(claim.UID), claim.Namespace, claim.Name)
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			c.Pods = append(c.Pods, kubelet.Pod{Namespace: claim.Namespace, Name: user.Name, UID: string(user.UID)})
		}
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.Driver != api.Driver {
			continue
		}
		own, err := d.device(claim, r, devices, inv)
		if err != nil {
			return nil, fmt.Errorf("request %s: %w", r.Request, err)
		}
		c.Devices = append(c.Devices, *own)
	}
	return c, nil
}

// device returns one device of a claim.
func (d *Driver) device(
	claim *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult, devices *pool.Pool,
	inv *inventory.Inventory,
) (*allocate.ClaimDevice, error) {
	if clique, channel, ok := api.ParseChannel(r.Pool, r.Device); ok {
		if own, _ := labels.Clique(inv.Machine); own != clique {
			return nil, fmt.Errorf("pool %s is not of node %s: its GPUs are in clique %q", r.Pool, d.NodeName, own)
		}
		return &allocate.ClaimDevice{Request: r.Request, Pool: r.Pool, Device: r.Device, Channel: channel}, nil
	}
	if r.Pool != d.NodeName {
		return nil, fmt.Errorf("pool %s is not of node %s", r.Pool, d.NodeName)
	}
	device, known := devices.Find(r.Device)
	if !known {
		return nil, fmt.Errorf("device %s is not on node %s any more, or not allocated by claims", r.Device, d.NodeName)
	}
	admin := r.AdminAccess != nil && *r.AdminAccess
	if device.Type == api.Monitor && !admin {
		return nil, fmt.Errorf("device %s is for requests with adminAccess", r.Device)
	}
	parameters, err := parametersOf(claim, r.Request)
	if err != nil {
		return nil, err
	}
	own := &allocate.ClaimDevice{
		Request: r.Request, Pool: r.Pool, Device: r.Device, GPU: device.GPU, HCA: device.HCA,
		Monitor: admin,
	}
	if r.ShareID != nil {
		own.ShareID = string(*r.ShareID)
	}
	if device.Type == api.GPU && !own.Monitor {
		own.Share = shareOf(r, device.GPU, inv)
	}
	if own.Share != nil {
		own.Policy = string(cmp.Or(parameters.Policy, inv.Config.SGPU.Defaults.Policy))
	}
	return own, nil
}

// shareOf returns the part of a GPU that a claim was allocated; nil for all of it.
func shareOf(r *resourceapi.DeviceRequestAllocationResult, uuid string, inv *inventory.Inventory) *allocation.Share {
	share := &allocation.Share{UUID: uuid}
	whole := true
	for i := range inv.Machine.GPUs {
		g := &inv.Machine.GPUs[i]
		if g.UUID != uuid {
			continue
		}
		share.VCore, share.MemoryMiB = quota.Whole, g.MemoryMiB
		if amount, has := r.ConsumedCapacity[api.CapacityVCore]; has && amount.Value() < quota.Whole {
			share.VCore, whole = int(amount.Value()), false
		}
		if amount, has := r.ConsumedCapacity[api.CapacityVMemory]; has && amount.Value()>>20 < g.MemoryMiB {
			share.MemoryMiB, whole = amount.Value()>>20, false
		}
	}
	if whole {
		return nil
	}
	return share
}

// parametersOf returns the parameters of a request: those of the claim before those of its class, the last first.
func parametersOf(claim *resourceapi.ResourceClaim, request string) (*api.Parameters, error) {
	found := &api.Parameters{}
	for _, source := range []resourceapi.AllocationConfigSource{
		resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim,
	} {
		for i := range claim.Status.Allocation.Devices.Config {
			c := &claim.Status.Allocation.Devices.Config[i]
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != api.Driver || !appliesTo(c.Requests, request) {
				continue
			}
			p, err := api.ParseParameters(c.Opaque.Parameters.Raw)
			if err != nil {
				return nil, err
			}
			if p.Policy != "" {
				found.Policy = p.Policy
			}
		}
	}
	return found, nil
}

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin].
func (d *Driver) UnprepareResourceClaims(
	_ context.Context, all []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range all {
		results[claim.UID] = d.State.UnprepareClaim(string(claim.UID))
	}
	return results, nil
}

// resendEvery is less than the 30 s after which the kubelet takes the health of a device for unknown.
const resendEvery = 15 * time.Second

// WatchHealthStatus implements [kubeletplugin.DRAPlugin].
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	changed, stop := d.health.watch()
	defer stop()
	ticker := time.NewTicker(resendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case reports <- d.healthReport():
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (d *Driver) healthReport() kubeletplugin.DeviceHealthReport {
	d.mu.Lock()
	defer d.mu.Unlock()
	var r kubeletplugin.DeviceHealthReport
	now := time.Now()
	for device, reason := range d.pool.Devices() {
		h := kubeletplugin.DeviceHealth{
			PoolName: d.NodeName, DeviceName: device.Name, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: now,
		}
		if reason != "" {
			h.Health, h.Message = kubeletplugin.HealthStatusUnhealthy, reason
		}
		r.Devices = append(r.Devices, h)
	}
	return r
}
