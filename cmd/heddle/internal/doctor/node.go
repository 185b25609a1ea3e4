package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/discovery/labels"
	"github.com/heddle-dev/heddle/discovery/nodesync"
)

// The programs that label Nodes, hand out devices, and report where cables end.
const (
	discovery    = "heddle-feature-discovery"
	devicePlugin = "heddle-device-plugin"
	topoWorker   = "heddle-topo-worker"
)

// onNode is the remedy for what the Node alone does not explain.
const onNode = "Run heddle doctor on the node: it shows what can be done about each device."

// clusterNode is a Node with everything that the API server has about it.
type clusterNode struct {
	client *cluster.Client
	node   *corev1.Node
	pods   []corev1.Pod
	// schedulers are the names by which pods reach heddle-scheduler; empty where it does not run.
	schedulers []string
	// topology is the Node's report of its cables; nil without one, and without the right to read it.
	topology *v1alpha1.NodeTopology
	// dra describes the cluster's objects for claims; nil without the API, or the right to read it.
	dra *clusterDRA
	// sameHostname are other Nodes with its kubernetes.io/hostname; nil also without the right to list Nodes.
	sameHostname []string
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
	if n.schedulers, err = readSchedulers(ctx, client); err != nil {
		return nil, err
	}
	if n.sameHostname, err = readSameHostname(ctx, client, n.node); err != nil {
		return nil, err
	}
	if n.dra, err = readDRA(ctx, client, name); err != nil {
		return nil, err
	}
	request := client.Get().AbsPath("/apis", v1alpha1.GroupName, v1alpha1.Version, v1alpha1.Plural, name)
	n.topology, err = cluster.Read[v1alpha1.NodeTopology](ctx, request, "NodeTopology "+name)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return n, nil
	}
	return n, err
}

func readSameHostname(ctx context.Context, client *cluster.Client, node *corev1.Node) ([]string, error) {
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		return nil, nil
	}
	request := client.Get().Resource("nodes").Param("labelSelector", corev1.LabelHostname+"="+hostname)
	list, err := cluster.Read[corev1.NodeList](ctx, request, "Nodes")
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var others []string
	for i := range list.Items {
		if name := list.Items[i].Name; name != node.Name {
			others = append(others, name)
		}
	}
	return others, nil
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
	return slices.ContainsFunc(resources(cfg), func(name string) bool {
		_, known := n.node.Status.Capacity[corev1.ResourceName(name)]
		return known
	})
}

// check explains a Node as the API server knows it and, if want is not nil, the differences from its machine.
func (n *clusterNode) check(l *Findings, cfg *config.NodeConfig, want *labels.Result) {
	plugin := n.pod(devicePlugin) != nil
	if len(n.sameHostname) > 0 {
		l.problem("Node "+n.node.Name, "Give each machine its own host name, then restart its kubelet.",
			"shares kubernetes.io/hostname %s with %s: pods that keep one another off a hostname count them as one node, "+
				"and a local volume of one is sought on all",
			n.node.Labels[corev1.LabelHostname], strings.Join(n.sameHostname, ", "))
	}
	n.checkConditions(l, plugin)
	n.checkAnnotations(l)
	n.checkDiscovery(l)
	checkSchedulers(l, n.schedulers, n.pods, cfg)
	checkTokens(l, n.pods, cfg)
	n.dra.check(l, n.node.Name, cfg)
	if n.topology != nil {
		checkSources(l, n.topology)
	}
	if want != nil {
		checkLabels(l, n.node, want, cfg.LabelConflict == config.Force)
	}
	claimed := cfg.Mode == config.ModeClaims && len(cfg.Claims.GPUs) == 0 // Then it is 0 as it should be.
	for _, name := range resources(cfg) {
		if claimed && name == cfg.Resources.GPU {
			continue
		}
		checkResource(l, n.node, name)
	}
}

// checkConditions explains conditions that are not as they should be. Where the device plugin does not run, its
// conditions may be old.
func (n *clusterNode) checkConditions(l *Findings, plugin bool) {
	subject := "Node " + n.node.Name
	for _, c := range n.node.Status.Conditions {
		holds := c.Status == corev1.ConditionTrue
		text := c.Reason + ": " + c.Message
		switch {
		case c.Type == corev1.NodeReady && !holds:
			l.problem(subject, "See the kubelet's log on the node.", "is not Ready: %s", text)
		case c.Type == wellknown.ConditionDevices && !holds && plugin:
			l.problem(subject, onNode, "%s is %s: %s", c.Type, c.Status, text)
		case c.Type == wellknown.ConditionDevices && !holds:
			l.note(subject, onNode, "%s is %s: %s (of %s, which does not run here now)", c.Type, c.Status, text, devicePlugin)
		case c.Type == wellknown.ConditionFabric && c.Status == corev1.ConditionFalse:
			l.problem(subject, "Correct the cable, or the switch's port; heddle topo miscabled shows every port of the cluster.",
				"%s: %s", c.Type, text)
		case c.Type == wellknown.ConditionRemediation && holds:
			l.problem(subject, "docs/operate/health.md#remediation has what follows.", "%s: %s", c.Type, text)
		case c.Type == wellknown.ConditionRejects && holds:
			l.problem(subject, "docs/operate/rejects.md has what follows.", "%s: %s", c.Type, text)
		case c.Type == wellknown.ConditionModes && holds:
			for message := range strings.SplitSeq(c.Message, "; ") {
				l.note(subject, "", "%s", message)
			}
		}
	}
}

// checkAnnotations explains what operators took out, the Node or GPUs of it, and that the GPU driver is absent.
func (n *clusterNode) checkAnnotations(l *Findings) {
	name, annotations := n.node.Name, n.node.Annotations
	subject, undo := "Node "+name, "heddle gpu release "+name+" --undo"
	if n.node.Spec.Unschedulable {
		l.note(subject, "kubectl uncordon "+name, "is cordoned: no new pod comes here")
	}
	uuids, err := wellknown.ParseCordoned(annotations[wellknown.CordonedGPUs])
	for _, uuid := range uuids {
		l.cordon(name, uuid, ": no new pod gets it")
	}
	if err != nil {
		l.problem(subject, "Correct the annotation: kubectl edit node "+name, "%v", err)
	}
	if until := n.keptUntil(); !until.IsZero() {
		l.note(subject, "", "its GPU driver is absent; labels and taints of the GPUs are kept until %s", rfc3339(until))
	}
	switch asked, err := release.Parse(annotations[wellknown.GPURelease]); {
	case err != nil:
		l.problem(subject, undo, "its GPUs are not released: %v", err)
	case asked.Active(time.Now()):
		which := "any of its GPUs"
		if len(asked.GPUs) > 0 {
			which = strings.Join(asked.GPUs, ", ")
		}
		l.note(subject, undo, "the GPUs' driver is released until %s; no new pod gets %s", rfc3339(asked.Until), which)
	}
}

func (l *Findings) cordon(node, uuid, meaning string) {
	l.note("Node "+node, "heddle gpu uncordon "+node+" "+uuid, "GPU %s is cordoned%s", uuid, meaning)
}

// keptUntil returns when discovery stops keeping the Node's labels and taints without a GPU driver, or the zero time.
func (n *clusterNode) keptUntil() time.Time {
	since, err := time.Parse(time.RFC3339, n.node.Annotations[wellknown.DriverAbsentSince])
	if until := since.Add(config.KeepWithoutDriver); err == nil && time.Now().Before(until) {
		return until
	}
	return time.Time{}
}

// checkDiscovery reports a Node without a ready pod of discovery.
func (n *clusterNode) checkDiscovery(l *Findings) {
	pod := n.pod(discovery)
	const where = "See the DaemonSet's nodeSelector, tolerations and events."
	wrote := slices.ContainsFunc(n.node.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == wellknown.FieldManager
	})
	switch {
	case pod == nil && wrote: // As after --oneshot.
		l.note(discovery, where, "has no pod here: the labels that it wrote are no longer updated")
	case pod == nil:
		l.problem(discovery, where, "has no pod here, so the Node has none of heddle's labels")
	case !cluster.IsReady(pod):
		l.problem(discovery, fmt.Sprintf("kubectl -n %s logs %s", pod.Namespace, pod.Name),
			"is not ready here (pod %s/%s)", pod.Namespace, pod.Name)
	}
}

// checkSources explains what the topo-worker cannot see: sources that are silent, and what it could not read. A
// node without a known end of a cable is in no group, which is a problem.
func checkSources(l *Findings, nt *v1alpha1.NodeTopology) {
	known, active := len(nt.Spec.Path) > 0, false
	for i := range nt.Spec.Rails {
		r := &nt.Spec.Rails[i]
		known = known || r.Switch != nil
		active = active || r.Role == "fabric" && r.LinkState == v1alpha1.LinkActive
	}
	for _, s := range nt.Spec.Stale {
		l.note("source "+string(s.Source), "Cables do not move because a source is silent: what it last reported stands.",
			"is silent since %s: %s", rfc3339(s.Since.Time), s.Reason)
	}
	if !known && active {
		l.problem(topoWorker, "docs/concepts/topology.md lists what each source needs.",
			"knows the switch behind none of the node's active ports: the node is in no group")
	}
	for i := range nt.Spec.DegradedLinks {
		d := &nt.Spec.DegradedLinks[i]
		name := cmp.Or(d.Netdev, d.HCA, v1alpha1.DeviceLink(d.ID, d.Link))
		if d.Port > 0 {
			name += fmt.Sprintf(" port %d", d.Port)
		}
		if d.End != "" {
			name += ", the " + d.End + "'s end"
		}
		l.problem("link of "+name, "docs/operate/slow-link.md has what to do.",
			"is degraded since %s: %s is %s, the limit is %s (%s)",
			rfc3339(d.Since.Time), d.What, d.Value, d.Limit, d.Source)
	}
	var ports group // Eight rails have one reason.
	for _, s := range nt.Spec.Skipped {
		ports.add(s.Reason, s.Name)
	}
	for _, reason := range ports.order {
		l.note(topoWorker, "", "%s: %s", ports.join(reason), reason)
	}
}

// checkLabels compares the Node with what the machine should have.
func checkLabels(l *Findings, node *corev1.Node, want *labels.Result, force bool) {
	desired := nodesync.Desired{Labels: want.Labels, Taints: want.Taints, Force: force}
	changes, conflicts := nodesync.Preview(node, desired)
	for _, c := range conflicts {
		l.problem(c.Kind+" "+c.Key, "Take it from the other writer, or set labelConflict: force.",
			"%s; it is left to them", c.String())
	}
	if len(changes) > 0 {
		l.problem("Node "+node.Name, "If it stays so for a minute, see heddle-feature-discovery's log.",
			"differs from what this machine should have: %s", strings.Join(changes, "; "))
	}
}

// resources returns the names of the resources that the configuration has.
func resources(cfg *config.NodeConfig) []string {
	names := []string{cfg.Resources.GPU}
	if cfg.Mode == config.ModeSGPU {
		names = append(names, cfg.Resources.SGPU)
	}
	for i := range cfg.RDMA.Resources {
		names = append(names, cfg.RDMA.Resources[i].Name)
	}
	return names
}

// checkResource explains a resource that is zero or reduced. Why it is not more, the device plugin reports.
func checkResource(l *Findings, node *corev1.Node, name string) {
	capacity, known := node.Status.Capacity[corev1.ResourceName(name)]
	allocatable := node.Status.Allocatable[corev1.ResourceName(name)]
	subject := "resource " + name
	switch {
	case known && capacity.IsZero():
		l.note(subject, onNode, "is 0: the device plugin that registered it lists no devices, or is gone")
	case allocatable.Cmp(capacity) < 0:
		l.problem(subject, onNode, "has allocatable %s of %s: the others are unhealthy",
			allocatable.String(), capacity.String())
	}
	counts, err := allocation.ParseHCACounts(node.Annotations[wellknown.HCACounts])
	if err != nil {
		return // It has none, or the version of another heddle's.
	}
	if n := counts.HCAs[name]; n > 0 && capacity.Value() > int64(n) {
		l.note(subject, "", "%d HCAs, up to %d containers each: capacity %s counts places, and a container gets %d HCAs "+
			"at most", n, capacity.Value()/int64(n), capacity.String(), n)
	}
}
