package plugin

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
)

// groups is how many API groups have PodGroups.
const groups = 2

// lookedFor counts an API group once as looked for.
func (p *Plugin) lookedFor(already bool) bool {
	if !already {
		p.looked.Add(1)
	}
	return true
}

// lacks says that a cluster has no PodGroups of a group, if we would make some.
func (p *Plugin) lacks(ctx context.Context, group string) {
	if group == gang.APIGroupXK8s && p.args.PodGroups {
		p.log.InfoContext(ctx, "the cluster has no podgroups; none are made for gangs that labels describe", "group", group)
	}
}

// keepPodGroups keeps our PodGroup objects, until the context ends.
func (p *Plugin) keepPodGroups(
	ctx context.Context, group string, client dynamic.NamespaceableResourceInterface, store podgroup.Store,
) {
	if !p.args.PodGroups || group != gang.APIGroupXK8s {
		return
	}
	k := podgroup.Keeper{Client: client, Store: store, Gangs: p.described, Log: p.log}
	k.Run(ctx)
}

// described are the gangs that have pods; false as long as this process does not
// lead, or has not seen everything.
func (p *Plugin) described() (map[types.NamespacedName]*podgroup.Gang, bool) {
	if p.looked.Load() < groups || !p.filled() || !p.leading() {
		return nil, false
	}
	all := map[types.NamespacedName]*podgroup.Gang{}
	for _, c := range p.crowds() {
		all[c.key] = c.described()
	}
	return all, true
}

// crowd is a gang as it is outside the book's lock. Pods never change.
type crowd struct {
	key  types.NamespacedName
	pods []*corev1.Pod
	// ours tells that a pod of it is for this scheduler.
	ours bool
	// live tells that a pod of it is neither finished nor going; fault and
	// object, that its members contradict each other, and that an object of its
	// user's exists.
	live, fault, object bool
	min                 int
	timeout             time.Duration
	rejected            time.Time
	lost                func(node string) bool
}

// crowds are all gangs that have pods.
func (p *Plugin) crowds() []crowd {
	profile := p.handle.ProfileName()
	b := p.book
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]crowd, 0, len(b.gangs))
	for key, e := range b.gangs {
		if len(e.members) == 0 {
			continue
		}
		b.settle(e)
		c := crowd{
			key: key, fault: e.fault != nil, object: e.object != nil, min: e.gang.MinMember, lost: p.lost,
			pods: make([]*corev1.Pod, 0, len(e.members)),
		}
		for _, m := range e.members {
			c.pods = append(c.pods, m.pod)
			c.ours = c.ours || m.pod.Spec.SchedulerName == profile
			c.live = c.live || m.live()
			c.timeout = max(c.timeout, m.spec.Timeout)
		}
		if !e.rejected.IsZero() {
			if ok, _ := b.complete(e); ok {
				c.rejected = e.rejected
			}
		}
		all = append(all, c)
	}
	return all
}

// lost tells whether a node is not ready, or gone.
func (p *Plugin) lost(name string) bool {
	node, err := p.handle.SharedInformerFactory().Core().V1().Nodes().Lister().Get(name)
	if err != nil {
		return true
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionTrue
		}
	}
	return false
}

// state is what people are told.
func (c *crowd) state() gang.State { return gang.StateOf(c.pods, c.min, c.lost) }

// described is what its object is to say.
func (c *crowd) described() *podgroup.Gang {
	g := &podgroup.Gang{
		Key: c.key, Theirs: !c.ours, MinMember: c.min, Timeout: c.timeout, Owner: c.owner(),
		Status: podgroup.StatusOf(c.state()),
	}
	for _, pod := range c.pods {
		g.Labels = g.Labels || gang.IsLabeled(pod)
	}
	g.Labels = g.Labels && !c.object
	g.Make = c.live && !c.fault && c.min > 0
	return g
}

// owner is the controller that all pods have; nil if they have none, or several.
func (c *crowd) owner() *metav1.OwnerReference {
	var owner *metav1.OwnerReference
	for _, pod := range c.pods {
		o := metav1.GetControllerOfNoCopy(pod)
		if o == nil || owner != nil && o.UID != owner.UID {
			return nil
		}
		owner = o
	}
	return &metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
}
