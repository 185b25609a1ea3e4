package claims

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
)

// retryFirst is the time between the first two tries to start. It doubles up to retryMost.
const retryFirst, retryMost = time.Second, time.Minute

// publishPause is the shortest time between two writes.
const publishPause = time.Second

// retry tries until there is no error, which a fault shows. It returns false if ctx ends first.
func (d *Driver) retry(ctx context.Context, fault string, try func() error) bool {
	pause := retryFirst
	for err := try(); err != nil; err = try() {
		d.faults.Note(fault, err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
			pause = min(2*pause, retryMost)
		}
	}
	d.faults.Note(fault, nil)
	return true
}

// probe learns, by a write without effect, whether the API server keeps shares and taints of devices. Otherwise pods
// could get a GPU and its pair until the first write shows what it drops.
func (d *Driver) probe(ctx context.Context) error {
	sent := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: d.NodeName + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: api.Driver, NodeName: &d.NodeName, Pool: resourceapi.ResourcePool{Name: d.NodeName, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{
				Name: "probe", AllowMultipleAllocations: new(true),
				Taints: []resourceapi.DeviceTaint{{Key: api.TaintUnavailable, Effect: resourceapi.DeviceTaintEffectNoSchedule}},
			}},
		},
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	kept, err := d.Client.ResourceV1().ResourceSlices().Create(ctx, sent, dry)
	if err != nil {
		return fmt.Errorf("write ResourceSlices: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plain = len(kept.Spec.Devices) != 1 || kept.Spec.Devices[0].AllowMultipleAllocations == nil ||
		len(kept.Spec.Devices[0].Taints) == 0
	return nil
}

// rejected returns why the kubelet does not take the driver: it knows no DRA, for instance.
func rejected(s *pluginregistration.RegistrationStatus) error {
	if s == nil || s.PluginRegistered { // nil: it has not answered yet.
		return nil
	}
	return fmt.Errorf("the kubelet rejects the DRA driver: %s", s.Error)
}

// publisher is the part of the library's helper that publishing needs.
type publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
	RegistrationStatus() *pluginregistration.RegistrationStatus
}

// publish publishes the devices after each round that changes them, until ctx ends.
func (d *Driver) publish(ctx context.Context, helper publisher) {
	var published offer
	for {
		// What only looks different, the library does not write.
		if next := d.offer(); next != published {
			published = next
			err := helper.PublishResources(ctx, resourceslice.DriverResources{
				Pools: map[string]resourceslice.Pool{d.NodeName: {Slices: next.slices()}},
			})
			d.faults.Note(faultPublish, err)
			select { // A device that fails and recovers again and again is written once a second.
			case <-ctx.Done():
				return
			case <-time.After(publishPause):
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.due:
		}
		d.faults.Note(faultKubelet, rejected(helper.RegistrationStatus()))
		_ = d.State.RestoreClaims(ctx, false)
	}
}

// offer is a pool, and whether the API server knows no counters, shares or taints of devices.
type offer struct {
	pool  *pool.Pool
	plain bool
}

func (d *Driver) offer() offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return offer{d.pool, d.plain}
}

func (o offer) slices() []resourceslice.Slice {
	if o.plain {
		return o.pool.Plain()
	}
	return o.pool.Slices()
}

// HandleError implements [kubeletplugin.DRAPlugin]. Nothing about slices is worth the end of the process, which
// also serves the device plugin: the library tries again.
func (d *Driver) HandleError(_ context.Context, err error, message string) {
	if _, dropped := errors.AsType[*resourceslice.DroppedFieldsError](err); dropped {
		d.mu.Lock()
		again := !d.plain
		d.plain = true
		d.mu.Unlock()
		if again {
			d.due.Notify()
		}
	}
	d.faults.Note(faultPublish, fmt.Errorf("%s: %w", message, err))
}
