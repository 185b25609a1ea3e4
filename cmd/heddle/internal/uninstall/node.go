package uninstall

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/discovery/nodesync"
	"github.com/heddle-dev/heddle/topo/master/publish"
)

// conditions begin with it: HeddleReady, HeddleModePending, HeddleFabric.
const conditionPrefix = "Heddle"

// hasPlugin reports whether heddle's device plugin serves the Node, or has served it.
func hasPlugin(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return strings.HasPrefix(string(c.Type), conditionPrefix) && c.Type != wellknown.ConditionFabric
	})
}

// leftIn lists what to remove from a Node besides labels and taints.
type leftIn struct {
	// annotations and status are merge patches, empty for no change.
	annotations map[string]any
	status      map[string]any
	// topology is whether topo-master applied labels.
	topology bool
}

// leftInNode finds heddle's traces in a Node. An annotation has the names of the resources that
// it served until the kubelet has forgotten them.
func leftInNode(node *corev1.Node, served []string) leftIn {
	l := leftIn{annotations: map[string]any{}, status: map[string]any{}}
	for key := range node.Annotations {
		if strings.HasPrefix(key, wellknown.Prefix) && key != wellknown.UninstalledResources {
			l.annotations[key] = nil
		}
	}
	for _, m := range node.ManagedFields {
		l.topology = l.topology || m.Manager == publish.FieldManager && m.Operation == "Apply"
		// HAMi's annotation of GPUs is removed if the device plugin wrote it.
		if m.Manager == devicePlugin && m.FieldsV1 != nil &&
			strings.Contains(string(m.FieldsV1.GetRawBytes()), `"f:`+wellknown.HAMiGPUs+`"`) {
			l.annotations[wellknown.HAMiGPUs] = nil
		}
	}
	var gone []map[string]string
	for _, c := range node.Status.Conditions {
		if strings.HasPrefix(string(c.Type), conditionPrefix) {
			gone = append(gone, map[string]string{"type": string(c.Type), "$patch": "delete"})
		}
	}
	if len(gone) > 0 {
		l.status["conditions"] = gone
	}
	if names := servedOn(node, served); len(names) > 0 {
		l.annotations[wellknown.UninstalledResources] = strings.Join(names, ",")
	}
	return l
}

// servedOn returns the resources of the Node's status that heddle served.
func servedOn(node *corev1.Node, served []string) (names []string) {
	if !hasPlugin(node) {
		return nil
	}
	for name := range node.Status.Capacity {
		if isServed(served, name) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

// withoutResources returns the patch of the status that removes the recorded resources, or nil
// if they are absent. A resource with allocatable devices belongs to another plugin now, if the
// Node is ready.
func withoutResources(node *corev1.Node) map[string]any {
	gone := map[string]any{}
	for name := range strings.SplitSeq(node.Annotations[wellknown.UninstalledResources], ",") {
		_, there := node.Status.Capacity[corev1.ResourceName(name)]
		left := node.Status.Allocatable[corev1.ResourceName(name)]
		if there && (left.IsZero() || isAway(node)) {
			gone[name] = nil
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return map[string]any{"capacity": gone, "allocatable": gone}
}

// cleanNodes removes heddle's traces from all Nodes.
func (u *uninstall) cleanNodes(ctx context.Context, served []string) error {
	all, err := u.nodes(ctx)
	if err != nil {
		return err
	}
	for _, node := range all {
		if err := u.cleanNode(ctx, node, leftInNode(node, served)); err != nil {
			return err
		}
	}
	u.progress("%s: labels, taints, annotations and conditions removed", cli.Count(len(all), "Node"))
	return nil
}

func (u *uninstall) cleanNode(ctx context.Context, node *corev1.Node, l leftIn) error {
	if _, err := nodesync.New(u.client, node.Name).Sync(ctx, node, nodesync.Desired{}); err != nil {
		return err
	}
	if l.topology {
		nothing := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node.Name}}
		err := u.patch(ctx, types.ApplyPatchType, "/api/v1/nodes/"+node.Name, publish.FieldManager, nothing)
		if err != nil {
			return err
		}
	}
	// The device plugin owns this taint, not feature-discovery.
	plugin := apiserver.New(u.client, node.Name, slog.New(slog.DiscardHandler))
	if err := plugin.SetTaint(ctx, wellknown.UnhealthyGPU, corev1.TaintEffectNoSchedule, false); err != nil {
		return err
	}
	// Conditions last: they tell which resources are heddle's.
	if len(l.annotations) > 0 {
		if err := u.annotate(ctx, node.Name, l.annotations); err != nil {
			return err
		}
	}
	if len(l.status) == 0 {
		return nil
	}
	return u.patchStatus(ctx, node.Name, l.status)
}
