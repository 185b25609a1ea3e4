package doctor

import (
	"context"
	"fmt"
	"maps"
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

// The conditions of a Node that heddle-device-plugin keeps: whether pods can get
// every device, and whether GPUs wait for pods to end before their mode changes.
const (
	conditionDevices = "HeddleReady"
	conditionModes   = "HeddleModePending"
)

// clusterNode is what the API server knows about a Node.
type clusterNode struct {
	client rest.Interface
	node   *corev1.Node
	pods   []corev1.Pod
	// discoveryRuns is whether discovery has a pod on any Node.
	discoveryRuns bool
	// schedulers are heddle-scheduler's profiles.
	schedulers schedulers
}

func readNode(ctx context.Context, api *cluster.Flags, name string) (*clusterNode, error) {
	client, err := api.Client()
	if err != nil {
		return nil, err
	}
	n := &clusterNode{client: client}
	if n.node, err = cluster.Node(ctx, client, name); err != nil {
		return nil, err
	}
	if n.pods, err = cluster.Pods(ctx, client, name); err != nil {
		return nil, err
	}
	if n.discoveryRuns, err = cluster.Runs(ctx, client, discovery); err != nil {
		return nil, err
	}
	if n.schedulers, err = readSchedulers(ctx, client); err != nil {
		return nil, err
	}
	return n, nil
}

// pod is the Node's pod of a program of heddle; nil if it has none.
func (n *clusterNode) pod(app string) *corev1.Pod {
	at := slices.IndexFunc(n.pods, func(p corev1.Pod) bool { return p.Labels[cluster.AppLabel] == app })
	if at < 0 {
		return nil
	}
	return &n.pods[at]
}

// offers reports whether the Node has a resource of the configuration.
func (n *clusterNode) offers(cfg *config.NodeConfig) bool {
	return slices.ContainsFunc(expectations(n.node, cfg), func(e expectation) bool {
		_, known := n.node.Status.Capacity[corev1.ResourceName(e.resource)]
		return known
	})
}

// checkNode explains a Node as the API server knows it and, if want is not nil,
// what it lacks of what its machine should have.
func checkNode(n *clusterNode, cfg *config.NodeConfig, want *labels.Result) []finding.Finding {
	plugin := n.pod(devicePlugin) != nil
	found := checkConditions(n.node, plugin)
	found = append(found, checkCordons(n.node)...)
	found = append(found, n.checkDiscovery()...)
	found = append(found, n.schedulers.check(n.pods, cfg)...)
	if want != nil {
		found = append(found, checkLabels(n.node, want, cfg.LabelConflict == config.Force)...)
	} else {
		found = append(found, checkOwners(n.node, cfg)...)
	}
	for _, e := range expectations(n.node, cfg) {
		found = append(found, e.check(n.node, plugin)...)
	}
	return found
}

// checkConditions explains conditions that are not as they should be. Where the
// device plugin does not run, its conditions may be old.
func checkConditions(node *corev1.Node, plugin bool) []finding.Finding {
	subject := "Node " + node.Name
	var found []finding.Finding
	for _, c := range node.Status.Conditions {
		holds := c.Status == corev1.ConditionTrue
		switch {
		case c.Type == corev1.NodeReady && !holds:
			found = append(found, problem(subject, "is not Ready: "+c.Reason+": "+c.Message,
				"See the kubelet's log on the node."))
		case c.Type == conditionDevices && !holds:
			f := problem(subject, conditionDevices+" is "+string(c.Status)+": "+c.Reason+": "+c.Message,
				"Run heddle doctor on the node: it shows what can be done about each device.")
			if !plugin {
				f.Level = finding.Note
				f.Message += " (of " + devicePlugin + ", which does not run here now)"
			}
			found = append(found, f)
		case c.Type == conditionModes && holds:
			for message := range strings.SplitSeq(c.Message, "; ") {
				found = append(found, note(subject, message, ""))
			}
		}
	}
	return found
}

// checkCordons explains what operators took out: the Node, or GPUs of it.
func checkCordons(node *corev1.Node) []finding.Finding {
	subject := "Node " + node.Name
	var found []finding.Finding
	if node.Spec.Unschedulable {
		found = append(found, note(subject, "is cordoned: no new pod comes here", "kubectl uncordon "+node.Name))
	}
	uuids, err := wellknown.ParseCordoned(node.Annotations[wellknown.CordonedGPUs])
	for _, uuid := range uuids {
		found = append(found, cordoned(node.Name, uuid))
	}
	if err != nil {
		found = append(found, problem(subject, err.Error(), "Correct the annotation: kubectl edit node "+node.Name))
	}
	return found
}

func cordoned(node, uuid string) finding.Finding {
	return note("Node "+node, "GPU "+uuid+" is cordoned: no new pod gets it", uncordon(node, uuid))
}

func uncordon(node, uuid string) string { return "heddle gpu uncordon " + node + " " + uuid }

// checkDiscovery reports whether discovery has written to the Node, and if not,
// why.
func (n *clusterNode) checkDiscovery() []finding.Finding {
	const remove = discovery + " --oneshot --cleanup removes what it left."
	pod := n.pod(discovery)
	wrote, when := applied(n.node)
	var f finding.Finding
	switch {
	case pod == nil && wrote && n.discoveryRuns:
		f = problem(discovery,
			"has no pod here, though it runs elsewhere; the Node's labels"+when+" are no longer kept up to date",
			"See the DaemonSet's nodeSelector and events; "+remove)
	case pod == nil && wrote:
		f = note(discovery,
			"wrote the Node's labels"+when+" and has no pod in the cluster: they are no longer kept up to date",
			"After --oneshot that is as it should be; "+remove)
	case pod == nil:
		f = problem(discovery, "has no pod here, so the Node has none of heddle's labels",
			"See the DaemonSet's nodeSelector, tolerations and events.")
	case !podReady(pod):
		f = problem(discovery, "is not ready here (pod "+pod.Namespace+"/"+pod.Name+")",
			fmt.Sprintf("kubectl -n %s logs %s", pod.Namespace, pod.Name))
	case !wrote && !writesFile(pod):
		f = problem(discovery, "runs here and has written nothing to the Node",
			fmt.Sprintf("kubectl -n %s logs %s: an admission policy or missing rights?", pod.Namespace, pod.Name))
	default:
		return nil
	}
	return []finding.Finding{f}
}

// applied reports whether discovery holds anything of the Node, and since when,
// with a blank before it; empty if that is not recorded.
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

// writesFile reports whether discovery writes its labels to a file, for
// node-feature-discovery.
func writesFile(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
			return strings.HasPrefix(strings.TrimLeft(arg, "-"), "output-file")
		})
	})
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// checkLabels compares the Node with what the machine should have.
func checkLabels(node *corev1.Node, want *labels.Result, force bool) []finding.Finding {
	desired := nodesync.Desired{Labels: want.Labels, Force: force}
	for _, t := range want.Taints {
		taint := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		desired.Taints = append(desired.Taints, taint)
	}
	changes, conflicts := nodesync.Preview(node, desired)
	var found []finding.Finding
	for _, c := range conflicts {
		found = append(found, problem(c.Kind+" "+c.Key, c.String()+"; it is left to them",
			"Take it from the other writer, or set labelConflict: force."))
	}
	if len(changes) > 0 {
		found = append(found, problem("Node "+node.Name,
			"differs from what this machine should have: "+strings.Join(changes, "; "),
			"If it stays so for a minute, see heddle-feature-discovery's log."))
	}
	return found
}

// checkOwners explains labels of the configuration that others hold alone. Of
// equal values discovery becomes an owner too, so what it does not own and would
// write it has left to them. The Node does not have the value that discovery
// would have written.
func checkOwners(node *corev1.Node, cfg *config.NodeConfig) []finding.Finding {
	if wrote, _ := applied(node); !wrote {
		return nil
	}
	owners := nodesync.LabelOwners(node)
	var found []finding.Finding
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		by := owners[key]
		if len(by) == 0 || slices.Contains(by, wellknown.FieldManager) || !writes(cfg, key) {
			continue
		}
		found = append(found, problem("label "+key,
			fmt.Sprintf("%s holds it with value %q; heddle-feature-discovery leaves it to them",
				strings.Join(by, " and "), node.Labels[key]),
			fmt.Sprintf("kubectl label node %s %s- frees it, unless its writer comes back; "+
				"labelConflict: force takes it.", node.Name, key)))
	}
	return found
}

// writes reports whether discovery writes a label under this configuration, on
// some machine.
func writes(cfg *config.NodeConfig, key string) bool {
	d := cfg.Domains
	switch {
	case key == d.Usage():
		return cfg.Usage != config.UsageUnset
	case key == d.ControlPlane():
		return cfg.ControlPlane
	case wellknown.Match(d.MIGResources(), key):
		return cfg.MIG.Strategy == config.MIGMixed
	case key == d.VendorKey(wellknown.MIGStrategy):
		return cfg.MIG.Strategy != config.MIGNone
	}
	return slices.ContainsFunc(labels.Allowed(cfg).Labels, func(pattern string) bool {
		return wellknown.Match(pattern, key)
	})
}
