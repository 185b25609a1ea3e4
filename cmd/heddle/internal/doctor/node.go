package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// discovery is the program that labels Nodes, devicePlugin the one that hands
// out devices.
const (
	discovery    = "heddle-feature-discovery"
	devicePlugin = "heddle-device-plugin"
)

// remove is how labels go.
const remove = discovery + " --oneshot --cleanup removes what it left."

// onNode is what the API server knows about a Node.
type onNode struct {
	client rest.Interface
	node   *corev1.Node
	pods   []corev1.Pod
	// elsewhere tells whether discovery has a pod on any Node.
	elsewhere bool
	// schedulers are heddle-scheduler's profiles.
	schedulers schedulers
	// ours tells whether the kubelet has a resource of the configuration.
	ours bool
}

func ask(ctx context.Context, api *cluster.Flags, name string) (*onNode, error) {
	client, err := api.Client()
	if err != nil {
		return nil, err
	}
	n := onNode{client: client}
	if n.node, err = cluster.Node(ctx, client, name); err != nil {
		return nil, err
	}
	if n.pods, err = cluster.Pods(ctx, client, name); err != nil {
		return nil, err
	}
	if n.elsewhere, err = cluster.Runs(ctx, client, discovery); err != nil {
		return nil, err
	}
	if n.schedulers, err = askScheduler(ctx, client); err != nil {
		return nil, err
	}
	return &n, nil
}

// addNode explains a Node as the API server knows it and, if the machine was
// read as well, what the Node lacks of what it should carry.
func (r *Report) addNode(there *onNode, all *config.Config) {
	node := there.node
	r.Node = node.Name
	cfg := all.Resolve(node.Name, node.Labels)
	_, plugin := running(there.pods, devicePlugin)
	r.Findings = append(r.Findings, ready(node)...)
	r.Findings = append(r.Findings, devicesReady(node, plugin)...)
	r.Findings = append(r.Findings, modesPending(node)...)
	r.Findings = append(r.Findings, there.labeled()...)
	r.Findings = append(r.Findings, there.schedulers.others(there.pods, &cfg)...)
	if r.labels != nil {
		r.Findings = append(r.Findings, lacks(node, r.labels, cfg.LabelConflict == config.Force)...)
	} else {
		r.Findings = append(r.Findings, yielded(node, &cfg)...)
	}
	for _, p := range promises(node, &cfg) {
		_, known := node.Status.Capacity[corev1.ResourceName(p.resource)]
		there.ours = there.ours || known
		r.Findings = append(r.Findings, p.kept(node, plugin)...)
	}
	finding.Sort(r.Findings)
}

func ready(node *corev1.Node) []finding.Finding {
	var all []finding.Finding
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			all = append(all, finding.Finding{
				Level: finding.Problem, Subject: "Node " + node.Name, Message: "is not Ready: " + c.Reason + ": " + c.Message,
				Remedy: "See the kubelet's log on the node.",
			})
		}
	}
	if node.Spec.Unschedulable {
		all = append(all, finding.Finding{
			Level: finding.Note, Subject: "Node " + node.Name, Message: "is cordoned: no new pod comes here",
			Remedy: "kubectl uncordon " + node.Name,
		})
	}
	return all
}

// conditionDevices is the condition that heddle-device-plugin keeps.
const conditionDevices = "HeddleReady"

// devicesReady tells which devices no pod can get, in the device plugin's
// words. Where it does not run, they may be old.
func devicesReady(node *corev1.Node, plugin bool) []finding.Finding {
	var all []finding.Finding
	for _, c := range node.Status.Conditions {
		if c.Type != conditionDevices || c.Status == corev1.ConditionTrue {
			continue
		}
		f := finding.Finding{
			Level: finding.Problem, Subject: "Node " + node.Name,
			Message: conditionDevices + " is " + string(c.Status) + ": " + c.Reason + ": " + c.Message,
			Remedy:  "Run heddle doctor on the node: it says what can be done about each device.",
		}
		if !plugin {
			f.Level = finding.Note
			f.Message += " (" + devicePlugin + ", which said so, does not run here now)"
		}
		all = append(all, f)
	}
	return all
}

// offers tells whether the Node has one of our resources; nil does not.
func (n *onNode) offers() bool {
	return n != nil && n.ours
}

// labeled tells whether discovery has written to the Node, and if not, why.
func (n *onNode) labeled() []finding.Finding {
	f := finding.Finding{Level: finding.Problem, Subject: discovery}
	pod, here := running(n.pods, discovery)
	wrote, when := applied(n.node)
	switch {
	case !here && wrote && n.elsewhere:
		f.Message = "has no pod here, though it runs elsewhere; nobody keeps the Node's labels" + when + " true"
		f.Remedy = "See the DaemonSet's nodeSelector and events; " + remove
	case !here && wrote:
		f.Level = finding.Note
		f.Message = "wrote the Node's labels" + when + " and has no pod in the cluster: nobody keeps them true"
		f.Remedy = "After --oneshot that is as it should be; " + remove
	case !here:
		f.Message = "has no pod here, so the Node has none of our labels"
		f.Remedy = "See the DaemonSet's nodeSelector, tolerations and events."
	case !podReady(pod):
		f.Message = "is not ready here (pod " + pod.Namespace + "/" + pod.Name + ")"
		f.Remedy = fmt.Sprintf("kubectl -n %s logs %s", pod.Namespace, pod.Name)
	case !wrote && !writesFile(pod):
		f.Message = "runs here and has written nothing to the Node"
		f.Remedy = fmt.Sprintf("kubectl -n %s logs %s: an admission policy or missing rights?", pod.Namespace, pod.Name)
	default:
		return nil
	}
	return []finding.Finding{f}
}

// applied tells whether discovery holds anything of the Node, and since when,
// with a blank before it; empty if nobody recorded it.
func applied(node *corev1.Node) (wrote bool, when string) {
	for _, e := range node.ManagedFields {
		if e.Manager != wellknown.FieldManager {
			continue
		}
		wrote = true
		if e.Time != nil && e.Operation == metav1.ManagedFieldsOperationApply {
			when = " of " + e.Time.UTC().Format(time.RFC3339)
		}
	}
	return wrote, when
}

// writesFile tells whether discovery hands its labels to somebody else to
// write.
func writesFile(p *corev1.Pod) bool {
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			return strings.HasPrefix(strings.TrimLeft(arg, "-"), "output-file")
		}) {
			return true
		}
	}
	return false
}

// running finds the pod of a program of ours.
func running(pods []corev1.Pod, app string) (pod *corev1.Pod, here bool) {
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Labels[cluster.AppLabel] == app })
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
			Level: finding.Problem, Subject: c.Kind + " " + c.Key, Message: c.String() + "; it is left to them",
			Remedy: "Take it from the other writer, or set labelConflict: force.",
		})
	}
	if len(changes) > 0 {
		all = append(all, finding.Finding{
			Level: finding.Problem, Subject: "Node " + node.Name,
			Message: fmt.Sprintf("differs from what this machine should have: %s", strings.Join(changes, "; ")),
			Remedy:  "If it stays so for a minute, see heddle-feature-discovery's log.",
		})
	}
	return all
}
