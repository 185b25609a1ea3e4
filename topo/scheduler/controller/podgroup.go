package controller

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
)

// The controller keeps the PodGroup objects of gangs that labels describe, so that
// kubectl get podgroups shows every gang: those of scheduling.x-k8s.io that heddle
// made. Such an object never decides about a gang, since it only repeats the pods.
//
//   - An object is managed by heddle if its label app.kubernetes.io/managed-by names
//     heddle-scheduler and no other field manager owns a field of its spec. A user
//     takes it over by editing the spec, or by removing the label.
//   - It is created when the gang's pods are described by labels, one of them is
//     neither finished nor terminating, none contradicts another, and no object of
//     that name exists in either API group.
//   - It follows the pods: another min-available is written into it.
//   - It belongs to the controller that all pods of the gang share, and is garbage
//     collected with the job. In any case it is deleted when the gang has had no
//     pod for some seconds, or an object of its user's.
//   - One that a user deletes while its gang has pods is created again, at most
//     every ten seconds. Neither has an effect on the gang.
const (
	// manager is the value of the label that marks managed objects, and the field
	// manager that writes them.
	manager   = "heddle-scheduler"
	managedBy = "app.kubernetes.io/managed-by"
)

// podGroup is the desired state of an object; its gang has pods.
type podGroup struct {
	gangcache.Gang
	// Foreign gangs are for another scheduler and left alone.
	Foreign bool
	// Owner is the controller that all pods share; nil if they share none.
	Owner *metav1.OwnerReference
	State gang.State
}

// podGroups are the objects that gangs are to have.
func (c *Controller) podGroups() map[types.NamespacedName]*podGroup {
	all := map[types.NamespacedName]*podGroup{}
	for _, s := range c.Cache.Gangs() {
		own := func(p *corev1.Pod) bool { return p.Spec.SchedulerName == c.Handle.ProfileName() }
		all[s.Key] = &podGroup{
			Gang: s, Foreign: !slices.ContainsFunc(s.Pods, own),
			Owner: owner(s.Pods), State: gang.StateOf(gang.Members(s.Pods), s.MinMember, c.nodeLost),
		}
	}
	return all
}

// owner is the controller that all pods have; nil if they have none, or several.
func owner(pods []*corev1.Pod) (owner *metav1.OwnerReference) {
	for _, pod := range pods {
		o := metav1.GetControllerOfNoCopy(pod)
		if o == nil || owner != nil && o.UID != owner.UID {
			return nil
		}
		owner = o
	}
	return &metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
}

// status is that of a PodGroup, as the coscheduling plugin writes it.
func (g *podGroup) status() map[string]any {
	s, phase := &g.State, "Pending"
	switch {
	case s.Phase == gang.Running:
		phase = "Running"
	case s.Phase == gang.Starting: // It has the nodes that it needs; too few members run yet.
		phase = "Scheduled"
	case s.Phase == gang.Succeeded:
		phase = "Finished"
	case s.Phase == gang.Unknown && s.Failed > 0:
		phase = "Failed"
	case s.Phase == gang.Unknown:
		phase = "Unknown"
	case s.Bound > 0:
		phase = "Scheduling"
	}
	return map[string]any{
		"phase": phase, "scheduled": int64(s.Bound + s.Succeeded), "running": int64(s.Running),
		"succeeded": int64(s.Succeeded), "failed": int64(s.Failed),
	}
}

// managed reports whether heddle created an object and nothing else has written
// its spec.
func managed(o *unstructured.Unstructured) bool {
	if o.GetLabels()[managedBy] != manager {
		return false
	}
	entries, _, _ := unstructured.NestedSlice(o.Object, "metadata", "managedFields")
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		_, spec, _ := unstructured.NestedFieldNoCopy(fields, "fieldsV1", "f:spec")
		if writer, _ := fields["manager"].(string); spec && writer != manager {
			return false
		}
	}
	return true
}

// action is what an object needs.
type action int

const (
	nothing action = iota
	create
	updateSpec
	updateStatus
	remove
)

// decide compares a gang, nil without pods, with the object of its name, nil if
// there is none.
func decide(g *podGroup, o *unstructured.Unstructured) action {
	switch {
	case g != nil && g.Foreign:
		return nothing
	case o == nil && g != nil && g.ByLabels && g.Certain:
		return create
	case o == nil, !managed(o), o.GetDeletionTimestamp() != nil:
		return nothing
	case g == nil, !g.ByLabels:
		return remove
	case g.Certain && !equality.Semantic.DeepEqual(g.described(o), o):
		return updateSpec
	case !equality.Semantic.DeepEqual(g.reported(o), o):
		return updateStatus
	}
	return nothing
}

// object is a new one.
func (g *podGroup) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion, "kind": "PodGroup",
		"spec": map[string]any{},
	}}
	o.SetNamespace(g.Key.Namespace)
	o.SetName(g.Key.Name)
	o.SetLabels(map[string]string{managedBy: manager})
	return g.described(o)
}

// described is an object with the spec and the owner of the gang. The errors are of
// a spec that is no object, and of a status that is none, which no schema allows.
func (g *podGroup) described(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	_ = unstructured.SetNestedField(o.Object, int64(g.MinMember), "spec", "minMember")
	unstructured.RemoveNestedField(o.Object, "spec", "scheduleTimeoutSeconds")
	if g.Timeout > 0 {
		_ = unstructured.SetNestedField(o.Object, int64(math.Ceil(g.Timeout.Seconds())), "spec", "scheduleTimeoutSeconds")
	}
	o.SetOwnerReferences(nil)
	if g.Owner != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{*g.Owner})
	}
	return o
}

// reported is an object with the status of the gang, and what else is in its status.
func (g *podGroup) reported(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	for field, value := range g.status() {
		_ = unstructured.SetNestedField(o.Object, value, "status", field)
	}
	return o
}

// patch is the merge patch that makes an object another one. The API server rejects
// it if the object has changed since it was read.
func patch(from, to *unstructured.Unstructured) ([]byte, error) {
	from = from.DeepCopy()
	from.SetUID("")
	from.SetResourceVersion("")
	old, err := from.MarshalJSON()
	if err != nil {
		return nil, err
	}
	text, err := to.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return jsonmergepatch.CreateThreeWayJSONMergePatch(old, text, old)
}
