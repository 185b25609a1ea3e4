// Package claims counts the GPUs of nodes that pods get by ResourceClaims, for plans. The scheduler's own plugin
// DynamicResources allocates them: a plan only has to leave it enough.
package claims

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
)

// Free returns how many GPUs each node has free for pods that request one of these resources, if the DeviceClass that
// stands for the resource is heddle's; nil if no node has such GPUs. A node that is not in it has none.
func Free(dra framework.SharedDRAManager, gpus []corev1.ResourceName) (free map[string]int64, err error) {
	if dra == nil || !slices.ContainsFunc(gpus, func(name corev1.ResourceName) bool {
		class := dra.DeviceClassResolver().GetDeviceClass(name)
		return class != nil && class.Name == string(claims.GPU)+claims.ClassSuffix
	}) {
		return free, nil
	}
	published, err := dra.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	published = slices.DeleteFunc(slices.Clone(published), func(s *resourceapi.ResourceSlice) bool {
		return s.Spec.Driver != claims.Driver || s.Spec.NodeName == nil
	})
	if len(published) == 0 {
		return free, nil
	}
	used, err := allocated(dra)
	if err != nil {
		return nil, err
	}
	free = map[string]int64{}
	taken := map[string]bool{}
	for _, s := range published {
		for i := range s.Spec.Devices {
			if used[device{s.Spec.Pool.Name, s.Spec.Devices[i].Name}] {
				taken[*s.Spec.NodeName+"/"+attribute(&s.Spec.Devices[i], claims.AttributeUUID)] = true
			}
		}
	}
	for _, s := range published {
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			uuid := attribute(d, claims.AttributeUUID)
			if attribute(d, claims.AttributeType) == string(claims.GPU) && !tainted(d) && !taken[*s.Spec.NodeName+"/"+uuid] {
				free[*s.Spec.NodeName]++
			}
		}
	}
	return free, nil
}

// device is a device of heddle's driver.
type device struct{ pool, name string }

// allocated returns the devices of all claims, those in flight included.
func allocated(dra framework.SharedDRAManager) (map[device]bool, error) {
	state, err := dra.ResourceClaims().GatherAllocatedState()
	if err != nil {
		return nil, fmt.Errorf("allocated devices: %w", err)
	}
	used := map[device]bool{}
	for id := range state.AllocatedDevices {
		if id.Driver.String() == claims.Driver {
			used[device{id.Pool.String(), id.Device.String()}] = true
		}
	}
	for id := range state.AllocatedSharedDeviceIDs {
		if id.Driver.String() == claims.Driver {
			used[device{id.Pool.String(), id.Device.String()}] = true
		}
	}
	return used, nil
}

// attribute returns a text attribute of heddle's.
func attribute(d *resourceapi.Device, key resourceapi.QualifiedName) string {
	a, ok := d.Attributes[key]
	if !ok {
		a = d.Attributes[claims.Driver+"/"+key]
	}
	if a.StringValue == nil {
		return ""
	}
	return *a.StringValue
}

func tainted(d *resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect != resourceapi.DeviceTaintEffectNone
	})
}
