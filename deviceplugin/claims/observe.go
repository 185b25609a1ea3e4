package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// listEvery is the time between two lists of all claims while GPUs leave the mode claims: no selector finds those
// of one node.
const listEvery = 5 * time.Second

// Observe returns the GPUs that claims may get by the ResourceSlices on the API server, and those that claims
// have been allocated, prepared or not. The slices are read first. It is for one goroutine.
func (d *Driver) Observe(ctx context.Context) (offered, held []inventory.Held, err error) {
	options := metav1.ListOptions{FieldSelector: fields.Set{
		resourceapi.ResourceSliceSelectorNodeName: d.NodeName, resourceapi.ResourceSliceSelectorDriver: api.Driver,
	}.String()}
	list, err := d.Client.ResourceV1().ResourceSlices().List(ctx, options)
	if err != nil {
		return nil, nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	d.mu.Lock()
	devices := d.pool
	d.mu.Unlock()
	if devices == nil { // Slices of an earlier start may be there, with devices that nobody can name yet.
		return nil, nil, errUnknown
	}
	for i := range list.Items {
		for j := range list.Items[i].Spec.Devices {
			published := &list.Items[i].Spec.Devices[j]
			if device, given := gives(devices, published.Name); given && len(published.Taints) == 0 {
				offered = append(offered, inventory.Held{Resource: api.Driver, ID: device.GPU})
			}
		}
	}
	// A list from before a GPU was withdrawn may lack a claim that got it.
	if s := &d.seen; s.listed.IsZero() || time.Since(s.listed) >= listEvery || !slices.Equal(s.offered, offered) {
		listed := time.Now()
		if held, err = d.allocated(ctx, devices); err != nil {
			return nil, nil, err
		}
		*s = observation{listed: listed, offered: offered, held: held}
	}
	return offered, d.seen.held, nil
}

var errUnknown = errors.New("the devices for claims are not known before the first round")

// gives returns the device of a name, if who is allocated it has a GPU.
func gives(devices *pool.Pool, name string) (pool.Device, bool) {
	device, known := devices.Find(name)
	return device, known && device.GPU != "" && device.Type != api.Monitor
}

// observation is what the last list of claims showed, and the GPUs that were offered before it.
type observation struct {
	listed        time.Time
	offered, held []inventory.Held
}

// allocated returns the GPUs of all claims.
func (d *Driver) allocated(ctx context.Context, devices *pool.Pool) (held []inventory.Held, err error) {
	all, err := d.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ResourceClaims: %w", err)
	}
	for i := range all.Items {
		claim := &all.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		for j := range claim.Status.Allocation.Devices.Results {
			r := &claim.Status.Allocation.Devices.Results[j]
			if r.Driver != api.Driver || r.Pool != d.NodeName || r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			if device, given := gives(devices, r.Device); given {
				held = append(held, inventory.Held{
					Resource: api.Driver, ID: device.GPU, Pod: "claim " + claim.Namespace + "/" + claim.Name,
				})
			}
		}
	}
	return held, nil
}
