package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
)

// annotatePods writes [wellknown.SGPUBound] where it differs from what the containers have,
// and returns what another client had changed. Many pods may start at once: again reports
// that something was not written, for an error or for lack of time.
func annotatePods(
	ctx context.Context, o *Options, bound map[types.NamespacedName]*boundPod, pods []*corev1.Pod, incomplete bool,
) (drifts []devicestate.Drift, again bool) {
	for _, p := range pods {
		key, text, warning := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, "", ""
		b := bound[key]
		if b != nil && b.uid != "" && !apiserver.HasUID(p, b.uid) {
			b = nil
		}
		switch {
		case b != nil && b.unrecorded, b == nil && incomplete:
			continue // The annotation stays as it was written.
		case b != nil:
			text, warning = b.String(), b.notEnforced(p)
		}
		now := p.Annotations[wellknown.SGPUBound]
		ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if now == text || ended {
			continue
		}
		var value *string
		if text != "" {
			value = &text
		}
		if err := o.API.AnnotatePod(ctx, key, p.UID, map[string]*string{wellknown.SGPUBound: value}); err != nil {
			again = true
			o.Log.WarnContext(ctx, "annotating a pod with its GPUs failed", "pod", key.String(), "err", err)
			continue
		}
		if warning != "" {
			o.API.WarnPod(apiserver.Ref(p), wellknown.EventSharesNotEnforced, warning)
		}
		if now != "" && b.contradicts(p, now) {
			drifts = append(drifts, devicestate.Drift{Kind: devicestate.DriftAnnotation, Message: fmt.Sprintf(
				"annotation %s of pod %s was not what its containers have, and is corrected", wellknown.SGPUBound, key)})
		}
	}
	return drifts, again
}

// notEnforced returns the warning that shares of a pod are not enforced; empty if its
// annotation has reported it before.
func (b *boundPod) notEnforced(p *corev1.Pod) string {
	before, _ := allocation.ParseBound(p.Annotations[wellknown.SGPUBound])
	for _, name := range slices.Sorted(maps.Keys(b.Containers)) {
		if before != nil && len(before.Containers[name].NotEnforced) > 0 {
			return ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.Containers)) {
		if what := b.Containers[name].NotEnforced; len(what) > 0 {
			return fmt.Sprintf("nothing keeps container %s within its share of %s, which is only counted: "+
				"the node has no enforcer for it (sgpu.enforce)", name, strings.Join(what, " and "))
		}
	}
	return ""
}

// contradicts reports that an annotation gives other GPUs than containers have that have
// started. One that has not may have been given others by an agent that ended before
// its files were written, and an annotation that leaves a container out is only old.
func (b *boundPod) contradicts(p *corev1.Pod, text string) bool {
	stated, err := allocation.ParseBound(text)
	if err != nil {
		return true
	}
	for name, c := range stated.Containers {
		var has []allocation.Share
		if b != nil {
			has = b.Containers[name].Shares
		}
		if hasStarted(p, name) && !slices.Equal(c.Shares, has) {
			return true
		}
	}
	return b != nil && stated.Node != b.Node
}

// hasStarted reports that a container runs or will run again, as the kubelet wrote it: the
// devices of an init container are free once it has ended.
func hasStarted(p *corev1.Pod, container string) bool {
	started := func(s corev1.ContainerStatus) bool {
		return s.Name == container && (s.State.Running != nil || s.RestartCount > 0)
	}
	runs := func(s corev1.ContainerStatus) bool { return s.Name == container && s.State.Running != nil }
	return slices.ContainsFunc(p.Status.ContainerStatuses, started) ||
		slices.ContainsFunc(p.Status.InitContainerStatuses, runs)
}

// boundPod is the annotation of a pod, and its UID as the kubelet knows it. unrecorded: a
// container of it is unrecorded, or the pod is leaving.
type boundPod struct {
	allocation.Bound
	uid        string
	unrecorded bool
}

// boundPods returns the annotations of all pods with shares.
func boundPods(view *devicestate.View, node string) map[types.NamespacedName]*boundPod {
	all := make(map[types.NamespacedName]*boundPod)
	for _, b := range view.Allocations() {
		if len(b.Shares) == 0 && !b.Unrecorded {
			continue
		}
		key := types.NamespacedName{Namespace: b.Namespace, Name: b.Pod}
		if all[key] == nil {
			all[key] = &boundPod{uid: b.UID, Bound: allocation.Bound{
				Version: allocation.Version, Node: node, Containers: map[string]allocation.Sharing{},
			}}
		}
		all[key].unrecorded = all[key].unrecorded || b.Unrecorded
		all[key].Containers[b.Container] = b.Sharing
	}
	for p := range view.Expiring() {
		if key := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); all[key] == nil {
			all[key] = &boundPod{uid: p.UID, unrecorded: true}
		}
	}
	return all
}
