package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// ReasonNotEnforced is the Event on a pod whose shares no enforcer limits.
const ReasonNotEnforced = "SharesNotEnforced"

// staleFor is how long a watch may take to show what was written.
const staleFor = 10 * time.Second

// writtenPod is what was written to a pod, over what, and when.
type writtenPod struct {
	text, over string
	at         time.Time
}

// annotatePods writes [wellknown.SGPUBound] where it differs from what the containers
// have. Many pods may start at once: what ctx has no time for is written by
// the next reconciliation.
func (t *shares) annotatePods(ctx context.Context, pods []*corev1.Pod, incomplete bool) {
	bound := t.bound()
	live := make(map[types.UID]bool, len(pods))
	for _, p := range pods {
		live[p.UID] = true
		text := ""
		b := bound[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]
		warning := ""
		if b != nil && of(p, b.uid) {
			text, warning = b.String(), b.notEnforced(p)
		}
		// What an unrecorded container has stays as it was written.
		if text == "" && incomplete || b != nil && b.unrecorded {
			continue
		}
		if ctx.Err() == nil && p.Annotations[wellknown.SGPUBound] != text {
			t.annotatePod(ctx, p, text, warning)
		}
	}
	for uid := range t.annotated {
		if !live[uid] {
			delete(t.annotated, uid)
		}
	}
	if ctx.Err() != nil {
		t.woken.Notify()
	}
}

// notEnforced is the warning that shares of a pod are not enforced; empty if its
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

// annotatePod writes the annotation of a pod that lives, and with it an Event if
// there is a warning, unless the watch may not have shown yet what was written.
func (t *shares) annotatePod(ctx context.Context, p *corev1.Pod, text, warning string) {
	now := p.Annotations[wellknown.SGPUBound]
	last, written := t.annotated[p.UID]
	switch {
	case p.DeletionTimestamp != nil, p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodFailed:
		return
	case written && last.text == text && last.over == now && time.Since(last.at) < staleFor:
		return
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if err := t.API.AnnotatePod(ctx, key, p.UID, map[string]*string{wellknown.SGPUBound: valueOrNone(text)}); err != nil {
		t.woken.Notify()
		if ctx.Err() == nil {
			t.Log.WarnContext(ctx, "annotating a pod with its GPUs failed", "pod", key.String(), "err", err)
		}
		return
	}
	if warning != "" {
		t.API.WarnPod(kubelet.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}, ReasonNotEnforced, warning)
	}
	// What was there is the agent's if it is what it wrote; then a container got more.
	if now != "" && now != last.text {
		t.drifted(ctx, devicestate.Drift{Kind: devicestate.DriftAnnotation, Message: fmt.Sprintf(
			"annotation %s of pod %s was not what its containers have, and is corrected", wellknown.SGPUBound, key)})
	}
	t.annotated[p.UID] = writtenPod{text, now, time.Now()}
}

// boundPod is the annotation of a pod, its UID as the kubelet knows it, and whether
// a container of it is unrecorded.
type boundPod struct {
	allocation.Bound
	uid        string
	unrecorded bool
}

func of(p *corev1.Pod, uid string) bool { return uid == "" || apiserver.HasUID(p, uid) }

// bound are the annotations of all pods with shares.
func (t *shares) bound() map[types.NamespacedName]*boundPod {
	all := make(map[types.NamespacedName]*boundPod)
	for _, b := range t.state.View().Allocations() {
		if len(b.Shares) == 0 && !b.Unrecorded {
			continue
		}
		key := types.NamespacedName{Namespace: b.Namespace, Name: b.Pod}
		if all[key] == nil {
			all[key] = &boundPod{uid: b.UID, Bound: allocation.Bound{
				Version: allocation.Version, Node: t.NodeName, Containers: map[string]allocation.BoundContainer{},
			}}
		}
		all[key].unrecorded = all[key].unrecorded || b.Unrecorded
		all[key].Containers[b.Container] = allocation.BoundContainer{
			Shares: b.Shares, Policy: b.Policy, By: b.By, NotEnforced: b.NotEnforced,
		}
	}
	return all
}
