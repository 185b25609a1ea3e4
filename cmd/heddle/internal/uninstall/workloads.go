package uninstall

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// The names of the chart's DaemonSets and Deployments.
const (
	discovery    = "heddle-feature-discovery"
	devicePlugin = "heddle-device-plugin"
	mps          = "heddle-mps"
	topoWorker   = "heddle-topo-worker"
	topoMaster   = "heddle-topo-master"
	scheduler    = "heddle-scheduler"
)

func (u *uninstall) path(kind, name string) string {
	return "/apis/apps/v1/namespaces/" + u.namespace + "/" + kind + "/" + name
}

// daemonSet returns a DaemonSet, or nil.
func (u *uninstall) daemonSet(ctx context.Context, name string) (*appsv1.DaemonSet, error) {
	var ds appsv1.DaemonSet
	there, err := cluster.ReadPath(ctx, u.client, u.path("daemonsets", name), "", &ds)
	if !there {
		return nil, err
	}
	return &ds, nil
}

// stop deletes all daemons, after the device plugin's pods have cleaned their hosts.
func (u *uninstall) stop(ctx context.Context, plugin *appsv1.DaemonSet) error {
	for kind, names := range map[string][]string{
		"daemonsets": {discovery, mps, topoWorker}, "deployments": {topoMaster, scheduler},
	} {
		for _, name := range names {
			if err := u.remove(ctx, u.path(kind, name), ""); err != nil {
				return err
			}
		}
	}
	if plugin != nil {
		if err := u.cleanHosts(ctx, plugin); err != nil {
			return err
		}
		if err := u.remove(ctx, u.path("daemonsets", plugin.Name), ""); err != nil {
			return err
		}
	}
	return u.until(ctx, u.running)
}

// running names a daemon that still runs on a ready node.
func (u *uninstall) running(ctx context.Context) (waitsFor string, err error) {
	away, err := u.away(ctx)
	if err != nil {
		return "", err
	}
	all := []string{discovery, devicePlugin, mps, topoWorker, topoMaster, scheduler}
	selector := cluster.AppLabel + " in (" + strings.Join(all, ",") + ")"
	err = each(ctx, u.client, u.namespace, "pods", selector, func(pod *corev1.Pod) {
		if pod.Spec.NodeName != "" && !away[pod.Spec.NodeName] && !cluster.Ended(pod) {
			waitsFor = "a pod of " + pod.Labels[cluster.AppLabel] + " ends"
		}
	})
	return waitsFor, err
}

// away returns the Nodes that are not ready.
func (u *uninstall) away(ctx context.Context) (map[string]bool, error) {
	away := map[string]bool{}
	return away, each(ctx, u.client, "", "nodes", "", func(node *corev1.Node) {
		away[node.Name] = !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
}

// cleanHosts turns the device plugin's DaemonSet into one that removes the plugin's files, and
// waits until it has done so on every ready node.
func (u *uninstall) cleanHosts(ctx context.Context, plugin *appsv1.DaemonSet) error {
	patch, err := cleaner(plugin)
	if err != nil {
		return err
	}
	path := u.path("daemonsets", plugin.Name)
	if err := u.patch(ctx, types.StrategicMergePatchType, path, manager, patch); err != nil {
		return err
	}
	return u.until(ctx, func(ctx context.Context) (string, error) {
		away, err := u.away(ctx)
		if err != nil {
			return "", err
		}
		ds, err := u.daemonSet(ctx, plugin.Name)
		if err != nil || ds == nil {
			return "", err
		}
		done, lost := 0, 0
		err = each(ctx, u.client, u.namespace, "pods", cluster.AppLabel+"="+plugin.Name, func(pod *corev1.Pod) {
			switch {
			case away[pod.Spec.NodeName]:
				lost++
			case pod.DeletionTimestamp == nil && cluster.IsReady(pod) &&
				slices.Contains(pod.Spec.Containers[0].Args, cleanupFlag):
				done++
			}
		})
		want := int(ds.Status.DesiredNumberScheduled)
		if err != nil || ds.Status.ObservedGeneration >= ds.Generation && done+lost >= want {
			if err == nil && lost > 0 {
				u.progress("the files of %d nodes stay: the nodes are not ready", lost)
			}
			return "", err
		}
		return fmt.Sprintf("%d of %d hosts are clean", done, want-lost), nil
	})
}

const (
	cleanupFlag = "--cleanup"
	// removeAt is the mount point of the parent of heddle's directory: a mount point cannot be
	// removed.
	removeAt = "/remove"
)

// cleanerArgs returns the arguments of a device plugin that cleans its host.
func cleanerArgs(args []string) []string {
	clean := []string{"device-plugin", cleanupFlag}
	for _, arg := range args {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--node-name", "--kubelet-dir", "--cdi-dir", "--log-level", "--log-format", "--metrics-address":
			clean = append(clean, arg)
		}
	}
	return clean
}

// cleaner returns the patch that makes the device plugin's pods remove their files.
func cleaner(plugin *appsv1.DaemonSet) (any, error) {
	spec := &plugin.Spec.Template.Spec
	kept := []string{"device-plugins", "cdi"}
	container := &spec.Containers[0]
	args := cleanerArgs(container.Args)
	replace := map[string]any{"$patch": "replace"}
	volumes, mounts := []any{replace}, []any{replace}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		flag := map[string]string{"state": "--state-dir", "mps-shm": "--mps-shm-dir"}[v.Name]
		switch {
		case slices.Contains(kept, v.Name):
			volumes = append(volumes, v)
		case flag != "" && v.HostPath != nil:
			// The state is in heddle's directory, which is removed too.
			above := filepath.Dir(v.HostPath.Path)
			if filepath.Base(above) == "heddle" {
				above = filepath.Dir(above)
			}
			rest, err := filepath.Rel(above, v.HostPath.Path)
			if err != nil {
				return nil, fmt.Errorf("volume %s of DaemonSet %s: %w", v.Name, plugin.Name, err)
			}
			at := removeAt + "/" + v.Name
			volumes = append(volumes, map[string]any{"name": v.Name, "hostPath": map[string]any{"path": above}})
			mounts = append(mounts, map[string]any{"name": v.Name, "mountPath": at})
			args = append(args, flag+"="+filepath.Join(at, rest))
		}
	}
	for i := range container.VolumeMounts {
		if slices.Contains(kept, container.VolumeMounts[i].Name) {
			mounts = append(mounts, &container.VolumeMounts[i])
		}
	}
	clean := map[string]any{"name": container.Name, "args": args, "volumeMounts": mounts}
	return map[string]any{"spec": map[string]any{
		// With a surge, the pod that serves would answer the probes of the one that cleans.
		"updateStrategy": map[string]any{"rollingUpdate": map[string]any{"maxSurge": 0, "maxUnavailable": "100%"}},
		"template": map[string]any{"spec": map[string]any{
			// One of them would install the library to preload again.
			"containers": []any{clean}, "volumes": volumes, "initContainers": nil,
		}},
	}}, nil
}

// resources returns the names, or patterns with one "*", of the resources that the device plugin
// serves by its configuration.
func (u *uninstall) resources(ctx context.Context, plugin *appsv1.DaemonSet) ([]string, error) {
	var spec corev1.PodSpec
	if plugin != nil {
		spec = plugin.Spec.Template.Spec
	}
	names, c := cluster.ConfigNames(&spec), config.Builtin()
	files, err := cluster.ConfigFiles(ctx, u.client, u.namespace, names...)
	if err != nil {
		return nil, err
	}
	if read, err := config.Parse(files, config.Uncompiled{}); err == nil {
		c = read
	} else {
		// The daemons use the last good one, which is unknown here.
		u.progress("The configuration of %v is invalid, using the default names of resources: %v", names, err)
	}
	names = nil
	for _, section := range c.Sections() {
		r := &section.Resources
		names = append(names, r.GPU, r.SGPU, r.VCore, r.VMemory, section.Domains.MIGResources())
		for i := range section.RDMA.Resources {
			names = append(names, section.RDMA.Resources[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// shown limits the pods that an error names.
const shown = 10

// checkHolders fails while pods have devices of heddle, unless forced.
func (u *uninstall) checkHolders(ctx context.Context, served []string) error {
	ours := map[string]bool{}
	err := each(ctx, u.client, "", "nodes", "", func(node *corev1.Node) { ours[node.Name] = hasPlugin(node) })
	if err != nil {
		return err
	}
	claimed, err := u.claimants(ctx)
	if err != nil {
		return err
	}
	if len(claimed) > 0 {
		return fmt.Errorf("pods use claims with devices of heddle, and would never end without its driver: %s: "+
			"delete them first", cli.First(claimed, shown, ", "))
	}
	var holders []string
	err = each(ctx, u.client, "", "pods", "", func(pod *corev1.Pod) {
		if ours[pod.Spec.NodeName] && holds(pod, served) {
			holders = append(holders, pod.Namespace+"/"+pod.Name)
		}
	})
	if err != nil || len(holders) == 0 {
		return err
	}
	if u.force {
		u.progress("continuing although %d pods have devices of heddle: their containers cannot start again", len(holders))
		return nil
	}
	return fmt.Errorf("pods have devices of heddle, and could not start again: %s: delete them first, "+
		"or use --force (the chart's uninstall.force=true)", cli.First(holders, shown, ", "))
}

// claimants returns the pods for which claims with devices of heddle are reserved; none without that API.
func (u *uninstall) claimants(ctx context.Context) (pods []string, err error) {
	text, err := u.client.Get().AbsPath("/apis/resource.k8s.io/v1/resourceclaims").
		SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) { // The chart grants it with gpuDevice.claims.enabled.
		return nil, nil
	}
	var list resourcev1.ResourceClaimList
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("read resourceclaims: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		if c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Results,
			func(r resourcev1.DeviceRequestAllocationResult) bool { return r.Driver == claims.Driver }) {
			continue
		}
		for _, user := range c.Status.ReservedFor {
			pods = append(pods, c.Namespace+"/"+user.Name)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}

// holds reports whether a pod that is not over has a share, or any other device.
func holds(pod *corev1.Pod, served []string) bool {
	if cluster.Ended(pod) {
		return false
	}
	if pod.Annotations[wellknown.SGPUBound] != "" {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Limits {
			if slices.ContainsFunc(served, func(p string) bool { return wellknown.Match(p, string(name)) }) {
				return true
			}
		}
	}
	return false
}
