package doctor

import (
	"context"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// clusterDRA counts the node's devices in heddle's ResourceSlices, and has all DeviceClasses.
type clusterDRA struct {
	devices int
	classes []resourcev1.DeviceClass
}

// readDRA returns nil where the API server has no claims, or the user may not read them.
func readDRA(ctx context.Context, client *cluster.Client, node string) (*clusterDRA, error) {
	api := func(resource string) []string { return []string{"/apis", resourcev1.GroupName, "v1", resource} }
	own := client.Get().AbsPath(api("resourceslices")...).Param("fieldSelector",
		resourcev1.ResourceSliceSelectorNodeName+"="+node+","+resourcev1.ResourceSliceSelectorDriver+"="+claims.Driver)
	published, err := cluster.Read[resourcev1.ResourceSliceList](ctx, own, "ResourceSlices of node "+node)
	var classes *resourcev1.DeviceClassList
	if err == nil {
		all := client.Get().AbsPath(api("deviceclasses")...)
		classes, err = cluster.Read[resourcev1.DeviceClassList](ctx, all, "DeviceClasses")
	}
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return nil, nil //nolint:nilnil // Nothing can be checked.
	case err != nil:
		return nil, err
	}
	d := &clusterDRA{classes: classes.Items}
	for i := range published.Items {
		d.devices += len(published.Items[i].Spec.Devices)
	}
	return d, nil
}

// check explains why pods get no GPU of a node in mode claims.
func (d *clusterDRA) check(l *Findings, node string, cfg *config.NodeConfig) {
	if d == nil || !cfg.UsesClaims() {
		return
	}
	if d.devices == 0 {
		l.problem("Node "+node,
			"See heddle-device-plugin's problems; pods may still have the GPUs in another mode: heddle gpu list "+node,
			"GPUs are for claims, and no ResourceSlice of %s has a device of this node", claims.Driver)
	}
	const own = claims.ClassGPU
	var others []string
	found := false
	for i := range d.classes {
		found = found || d.classes[i].Name == own
		stands := d.classes[i].Spec.ExtendedResourceName
		if stands != nil && *stands == cfg.Resources.GPU && d.classes[i].Name != own {
			others = append(others, d.classes[i].Name)
		}
	}
	slices.Sort(others)
	switch {
	case !found:
		l.problem("DeviceClass "+own, "The chart brings it with gpuDevice.claims.enabled=true.",
			"is missing, and GPUs are for claims")
	case len(others) > 0:
		l.problem("DeviceClass "+own, "Remove the extendedResourceName of all but one.",
			"other classes stand for %s too: %s; pods that request it get a device of one of them",
			cfg.Resources.GPU, strings.Join(others, ", "))
	}
}
