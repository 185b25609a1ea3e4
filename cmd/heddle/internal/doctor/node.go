package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/source"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// addNode explains a Node as the API server knows it and, if the machine was
// read as well, what the Node lacks of what it should carry.
func (r *Report) addNode(ctx context.Context, api *cluster.Flags, from *source.Flags, name string) error {
	all, err := from.Config()
	if err != nil {
		return err
	}
	client, err := api.Client()
	if err != nil {
		return err
	}
	node, err := cluster.Node(ctx, client, name)
	if err != nil {
		return err
	}
	pods, err := cluster.Pods(ctx, client, name)
	if err != nil {
		return err
	}
	r.Node = name
	cfg := all.Resolve(name, node.Labels)
	r.Findings = append(r.Findings, Node(node, pods, &cfg)...)
	if r.labels != nil {
		r.Findings = append(r.Findings, lacks(node, r.labels, cfg.LabelConflict == config.Force)...)
	}
	finding.Sort(r.Findings)
	return nil
}

// Node explains a Node by what stands in it and which pods run there.
func Node(node *corev1.Node, pods []corev1.Pod, cfg *config.NodeConfig) []finding.Finding {
	all := ready(node)
	all = append(all, labeled(node, pods)...)
	offered := []string{cfg.Resources.GPU}
	if cfg.Mode == config.ModeSGPU {
		offered = append(offered, cfg.Resources.SGPU)
	}
	for i := range cfg.RDMA.Resources {
		offered = append(offered, cfg.RDMA.Resources[i].Name)
	}
	_, plugin := running(pods, "heddle-device-plugin")
	for _, name := range offered {
		all = append(all, offers(node, name, expected(node, cfg, name), plugin)...)
	}
	return all
}

func ready(node *corev1.Node) []finding.Finding {
	var all []finding.Finding
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			all = append(all, finding.Finding{
				Level: finding.Problem, Subject: "Node " + node.Name, Says: "is not Ready: " + c.Reason + ": " + c.Message,
				Do: "See the kubelet's log on the node.",
			})
		}
	}
	if node.Spec.Unschedulable {
		all = append(all, finding.Finding{
			Level: finding.Note, Subject: "Node " + node.Name, Says: "is cordoned: no new pod comes here",
			Do: "kubectl uncordon " + node.Name,
		})
	}
	return all
}

// labeled tells whether feature-discovery has written to the Node, and if not,
// why.
func labeled(node *corev1.Node, pods []corev1.Pod) []finding.Finding {
	const app = "heddle-feature-discovery"
	f := finding.Finding{Level: finding.Problem, Subject: app}
	pod, here := running(pods, app)
	wrote := slices.ContainsFunc(node.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == names.FieldManager
	})
	switch {
	case !here && wrote:
		f.Says = "has no pod here; the Node's labels are from before and nobody keeps them true"
		f.Do = "See the DaemonSet's nodeSelector and events; heddle-feature-discovery --cleanup removes what it left."
	case !here:
		f.Says = "has no pod here, so the Node has none of our labels"
		f.Do = "See the DaemonSet's nodeSelector, tolerations and events."
	case !podReady(pod):
		f.Says = "is not ready here (pod " + pod.Namespace + "/" + pod.Name + ")"
		f.Do = fmt.Sprintf("kubectl -n %s logs %s", pod.Namespace, pod.Name)
	case !wrote:
		f.Says = "runs here and has written nothing to the Node"
		f.Do = fmt.Sprintf("kubectl -n %s logs %s: an admission policy or missing rights?", pod.Namespace, pod.Name)
	default:
		return nil
	}
	return []finding.Finding{f}
}

// running finds the pod of a program of ours.
func running(pods []corev1.Pod, app string) (pod *corev1.Pod, here bool) {
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels["app.kubernetes.io/name"] == app })
	if at < 0 {
		return nil, false
	}
	return &pods[at], true
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// expected is how many of a resource the Node's labels promise, as they are
// written; empty if they promise none.
func expected(node *corev1.Node, cfg *config.NodeConfig, resource string) string {
	promise := node.Labels[names.RDMACount]
	if !strings.HasPrefix(resource, "rdma/") {
		promise = node.Labels[cfg.Domains.CardKey("count")]
	}
	if promise == "0" {
		return ""
	}
	return promise
}

// offers explains one resource that is missing, zero or reduced. That nobody
// registered it is a problem where our device plugin should have.
func offers(node *corev1.Node, name, promise string, plugin bool) []finding.Finding {
	key := corev1.ResourceName(name)
	capacity, known := node.Status.Capacity[key]
	allocatable := node.Status.Allocatable[key]
	f := finding.Finding{Level: finding.Problem, Subject: "resource " + name}
	switch {
	case !known && promise == "":
		return nil
	case !known && !plugin:
		f.Level = finding.Note
		f.Says = "is not advertised: no heddle-device-plugin runs here; the Node's labels tell of " + promise + " devices"
	case !known:
		f.Says = "is not advertised, though the Node's labels tell of " + promise + " devices"
		f.Do = "heddle-device-plugin runs here and has not registered it with the kubelet: see its log."
	case capacity.IsZero():
		f.Says = "is 0: a device plugin registered it and lists no device"
		f.Do = "Run heddle doctor on the node: it says why each device is left out."
	case allocatable.IsZero():
		f.Says = fmt.Sprintf("has capacity %s and allocatable 0: every device is unhealthy", capacity.String())
		f.Do = "Run heddle doctor on the node: it says what is wrong with each device."
	case allocatable.Cmp(capacity) < 0:
		f.Says = fmt.Sprintf("has allocatable %s of %s: the others are unhealthy", allocatable.String(), capacity.String())
		f.Do = "Run heddle doctor on the node: it says what is wrong with each device."
	default:
		return nil
	}
	return []finding.Finding{f}
}

// lacks compares the Node with what the machine should have.
func lacks(node *corev1.Node, want *labels.Result, force bool) []finding.Finding {
	desired := nodesync.Desired{Labels: want.Labels, Force: force}
	for _, t := range want.Taints {
		taint := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		desired.Taints = append(desired.Taints, taint)
	}
	changes, conflicts := nodesync.Preview(node, desired)
	var all []finding.Finding
	for _, c := range conflicts {
		all = append(all, finding.Finding{
			Level: finding.Problem, Subject: c.Kind + " " + c.Key, Says: c.String() + "; it is left to them",
			Do: "Take it from the other writer, or set labelConflict: force.",
		})
	}
	if len(changes) > 0 {
		all = append(all, finding.Finding{
			Level: finding.Problem, Subject: "Node " + node.Name,
			Says: fmt.Sprintf("differs from what this machine should have: %s", strings.Join(changes, "; ")),
			Do:   "If it stays so for a minute, see heddle-feature-discovery's log.",
		})
	}
	return all
}
