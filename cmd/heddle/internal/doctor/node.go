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

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// discovery is the program that labels Nodes, devicePlugin the one that hands
// out devices.
const (
	discovery    = "heddle-feature-discovery"
	devicePlugin = "heddle-device-plugin"
)

// cablesRemedy is about [wellknown.ConditionFabric], which topo-master keeps.
const cablesRemedy = "Correct the cable, or the switch's port; heddle topo miscabled shows every port of the cluster."

// clusterNode is a Node with everything that the API server has about it.
type clusterNode struct {
	client *cluster.Client
	node   *corev1.Node
	pods   []corev1.Pod
	// discoveryRuns is whether discovery has a pod on any Node.
	discoveryRuns bool
	// schedulers are heddle-scheduler's profiles.
	schedulers schedulers
	// topology is the Node's report of its cables; nil without one.
	topology *v1alpha1.NodeTopology
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
	pods, err := cluster.Pods(ctx, client, name)
	if err != nil {
		return nil, err
	}
	n.pods = pods.Items
	anywhere, err := cluster.Pod(ctx, client, discovery)
	if err != nil {
		return nil, err
	}
	n.discoveryRuns = anywhere != nil
	if n.schedulers, err = readSchedulers(ctx, client); err != nil {
		return nil, err
	}
	if n.topology, err = readTopology(ctx, client, name); err != nil {
		return nil, err
	}
	return n, nil
}

// pod returns the Node's pod of a daemon of heddle; nil if it has none.
func (n *clusterNode) pod(app string) *corev1.Pod {
	at := slices.IndexFunc(n.pods, func(p corev1.Pod) bool { return cluster.Runs(&p, app) })
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

// check explains a Node as the API server knows it and, if want is not nil, the differences from
// its machine.
func (n *clusterNode) check(l *checks.List, cfg *config.NodeConfig, want *labels.Result) {
	plugin := n.pod(devicePlugin) != nil
	n.checkConditions(l, plugin)
	n.checkCordons(l)
	n.checkDiscovery(l)
	n.checkKept(l)
	n.checkReleased(l)
	n.schedulers.check(l, n.pods, cfg)
	if n.topology != nil {
		checkSources(l, n.topology)
	}
	if want != nil {
		checkLabels(l, n.node, want, cfg.LabelConflict == config.Force)
	} else {
		checkOwners(l, n.node, cfg)
	}
	for _, e := range expectations(n.node, cfg) {
		e.check(l, n.node, plugin)
	}
}

// checkConditions explains conditions that are not as they should be. Where the
// device plugin does not run, its conditions may be old.
func (n *clusterNode) checkConditions(l *checks.List, plugin bool) {
	const onNode = "Run heddle doctor on the node: it shows what can be done about each device."
	subject := "Node " + n.node.Name
	for _, c := range n.node.Status.Conditions {
		holds := c.Status == corev1.ConditionTrue
		text := c.Reason + ": " + c.Message
		switch {
		case c.Type == corev1.NodeReady && !holds:
			l.Problem(subject, "See the kubelet's log on the node.", "is not Ready: %s", text)
		case c.Type == wellknown.ConditionDevices && !holds && plugin:
			l.Problem(subject, onNode, "%s is %s: %s", wellknown.ConditionDevices, c.Status, text)
		case c.Type == wellknown.ConditionDevices && !holds:
			l.Note(subject, onNode, "%s is %s: %s (of %s, which does not run here now)",
				wellknown.ConditionDevices, c.Status, text, devicePlugin)
		case c.Type == wellknown.ConditionFabric && c.Status == corev1.ConditionFalse:
			l.Problem(subject, cablesRemedy, "%s: %s", wellknown.ConditionFabric, text)
		case c.Type == wellknown.ConditionRemediation && holds:
			l.Problem(subject, "docs/health.md#remediation has what follows.", "%s: %s", wellknown.ConditionRemediation, text)
		case c.Type == wellknown.ConditionModes && holds:
			for message := range strings.SplitSeq(c.Message, "; ") {
				l.Note(subject, "", "%s", message)
			}
		}
	}
}

// checkCordons explains what operators took out: the Node, or GPUs of it.
func (n *clusterNode) checkCordons(l *checks.List) {
	subject := "Node " + n.node.Name
	if n.node.Spec.Unschedulable {
		l.Note(subject, "kubectl uncordon "+n.node.Name, "is cordoned: no new pod comes here")
	}
	uuids, err := wellknown.ParseCordoned(n.node.Annotations[wellknown.CordonedGPUs])
	for _, uuid := range uuids {
		noteCordon(l, n.node.Name, uuid, ": no new pod gets it")
	}
	if err != nil {
		l.Problem(subject, "Correct the annotation: kubectl edit node "+n.node.Name, "%v", err)
	}
}

func noteCordon(l *checks.List, node, uuid, meaning string) {
	l.Note("Node "+node, "heddle gpu uncordon "+node+" "+uuid, "GPU %s is cordoned%s", uuid, meaning)
}

// checkDiscovery reports whether discovery has written to the Node, and if not,
// why.
func (n *clusterNode) checkDiscovery(l *checks.List) {
	const remove = discovery + " --oneshot --cleanup removes what it left."
	pod := n.pod(discovery)
	wrote, when := applied(n.node)
	switch {
	case pod == nil && wrote && n.discoveryRuns:
		l.Problem(discovery, "See the DaemonSet's nodeSelector and events; "+remove,
			"has no pod here, though it runs elsewhere; the Node's labels%s are no longer kept up to date", when)
	case pod == nil && wrote:
		l.Note(discovery, "After --oneshot that is as it should be; "+remove,
			"wrote the Node's labels%s and has no pod in the cluster: they are no longer kept up to date", when)
	case pod == nil:
		l.Problem(discovery, "See the DaemonSet's nodeSelector, tolerations and events.",
			"has no pod here, so the Node has none of heddle's labels")
	case !cluster.IsReady(pod):
		l.Problem(discovery, fmt.Sprintf("kubectl -n %s logs %s", pod.Namespace, pod.Name),
			"is not ready here (pod %s/%s)", pod.Namespace, pod.Name)
	case !wrote && !writesFile(pod):
		l.Problem(discovery,
			fmt.Sprintf("kubectl -n %s logs %s: an admission policy or missing rights?", pod.Namespace, pod.Name),
			"runs here and has written nothing to the Node")
	}
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

// checkLabels compares the Node with what the machine should have.
func checkLabels(l *checks.List, node *corev1.Node, want *labels.Result, force bool) {
	desired := nodesync.Desired{Labels: want.Labels, Taints: want.Taints, Force: force}
	changes, conflicts := nodesync.Preview(node, desired)
	for _, c := range conflicts {
		l.Problem(c.Kind+" "+c.Key, "Take it from the other writer, or set labelConflict: force.",
			"%s; it is left to them", c.String())
	}
	if len(changes) > 0 {
		l.Problem("Node "+node.Name, "If it stays so for a minute, see heddle-feature-discovery's log.",
			"differs from what this machine should have: %s", strings.Join(changes, "; "))
	}
}

// checkOwners explains labels of the configuration that others hold alone. Of
// equal values discovery becomes an owner too, so what it does not own and would
// write it has left to them. The Node does not have the value that discovery
// would have written.
func checkOwners(l *checks.List, node *corev1.Node, cfg *config.NodeConfig) {
	if wrote, _ := applied(node); !wrote {
		return
	}
	owners := nodesync.LabelOwners(node)
	for _, key := range slices.Sorted(maps.Keys(node.Labels)) {
		by := owners[key]
		if len(by) == 0 || slices.Contains(by, wellknown.FieldManager) || !writes(cfg, key) {
			continue
		}
		l.Problem("label "+key, fmt.Sprintf("kubectl label node %s %s- frees it, unless its writer comes back; "+
			"labelConflict: force takes it.", node.Name, key),
			"%s holds it with value %q; heddle-feature-discovery leaves it to them",
			strings.Join(by, " and "), node.Labels[key])
	}
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
