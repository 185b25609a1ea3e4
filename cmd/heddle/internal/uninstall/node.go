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

// leftIn lists what to remove from a Node besides labels and taints of discovery.
type leftIn struct {
	// annotations is a merge patch, and conditions a strategic one; empty for no change.
	annotations map[string]any
	conditions  []map[string]string
	// topology is whether topo-master applied labels.
	topology bool
}

// leftInNode finds heddle's traces in a Node.
func leftInNode(node *corev1.Node) leftIn {
	l := leftIn{annotations: map[string]any{}}
	for key := range node.Annotations {
		if strings.HasPrefix(key, wellknown.Prefix) {
			l.annotations[key] = nil
		}
	}
	for _, m := range node.ManagedFields {
		l.topology = l.topology || m.Manager == publish.FieldManager && m.Operation == "Apply"
		// Annotations under MetaX's names are removed if the device plugin wrote them.
		for _, key := range []string{wellknown.HAMiGPUs, wellknown.MetaXScores, wellknown.MetaXLosses} {
			if m.Manager == devicePlugin && m.FieldsV1 != nil &&
				strings.Contains(string(m.FieldsV1.GetRawBytes()), `"f:`+key+`"`) {
				l.annotations[key] = nil
			}
		}
	}
	for _, c := range node.Status.Conditions {
		if strings.HasPrefix(string(c.Type), conditionPrefix) {
			l.conditions = append(l.conditions, map[string]string{"type": string(c.Type), "$patch": "delete"})
		}
	}
	return l
}

// cleanNodes removes heddle's traces from all Nodes.
func (u *uninstall) cleanNodes(ctx context.Context) error {
	var all []*corev1.Node
	if err := each(ctx, u.client, "", "nodes", "", func(n *corev1.Node) { all = append(all, n) }); err != nil {
		return err
	}
	for _, node := range all {
		if err := u.cleanNode(ctx, node); err != nil {
			return err
		}
	}
	u.progress("%s: labels, taints, annotations and conditions removed", cli.Count(len(all), "Node"))
	return nil
}

func (u *uninstall) cleanNode(ctx context.Context, node *corev1.Node) error {
	l, path := leftInNode(node), "/api/v1/nodes/"+node.Name
	if _, err := nodesync.New(u.client, node.Name).Sync(ctx, node, nodesync.Desired{}); err != nil {
		return err
	}
	// The device plugin owns these taints, not feature-discovery.
	plugin := apiserver.New(u.client, node.Name, slog.New(slog.DiscardHandler))
	for _, key := range []string{wellknown.UnhealthyGPU, wellknown.RejectsPods} {
		if err := plugin.SetTaint(ctx, key, corev1.TaintEffectNoSchedule, false); err != nil {
			return err
		}
	}
	if l.topology {
		nothing := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": node.Name}}
		if err := u.patch(ctx, types.ApplyPatchType, path, publish.FieldManager, nothing); err != nil {
			return err
		}
	}
	if len(l.annotations) > 0 {
		gone := map[string]any{"metadata": map[string]any{"annotations": l.annotations}}
		if err := u.patch(ctx, types.MergePatchType, path, manager, gone); err != nil {
			return err
		}
	}
	if len(l.conditions) == 0 {
		return nil
	}
	// Conditions last: they tell which Nodes the device plugin serves.
	return u.patch(ctx, types.StrategicMergePatchType, path+"/status", manager,
		map[string]any{"status": map[string]any{"conditions": l.conditions}})
}
