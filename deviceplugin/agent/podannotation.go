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

// staleFor is how long a watch may take to show what was written.
const staleFor = 10 * time.Second

// writtenPod is what was written to a pod, over what, when, and what was before.
type writtenPod struct {
	text, over string
	at         time.Time
	earlier    []string
}

// has reports that a text was written, last or before.
func (w *writtenPod) has(text string) bool { return text == w.text || slices.Contains(w.earlier, text) }

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
		if b != nil && !of(p, b.uid) {
			b = nil
		}
		// What an unrecorded container has stays as it was written, and what one had of a
		// pod that leaves.
		if b != nil && b.unrecorded {
			continue
		}
		warning := ""
		if b != nil {
			text, warning = b.String(), b.notEnforced(p)
		}
		if text == "" && incomplete {
			continue
		}
		if ctx.Err() == nil && p.Annotations[wellknown.SGPUBound] != text {
			t.annotatePod(ctx, p, b, text, warning)
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

// annotatePod writes the annotation of a pod that lives, and with it an Event if
// there is a warning, unless the watch may not have shown yet what was written.
func (t *shares) annotatePod(ctx context.Context, p *corev1.Pod, b *boundPod, text, warning string) {
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
		about := kubelet.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
		t.API.WarnPod(about, wellknown.EventSharesNotEnforced, warning)
	}
	// What was there is the agent's if it wrote that ever, since a watch may be late: then a container got more.
	if now != "" && !last.has(now) && (written || b.contradicts(p, now)) {
		t.drifted(ctx, devicestate.Drift{Kind: devicestate.DriftAnnotation, Message: fmt.Sprintf(
			"annotation %s of pod %s was not what its containers have, and is corrected", wellknown.SGPUBound, key)})
	}
	if written && !last.has(text) {
		last.earlier = append(last.earlier, last.text)
	}
	t.annotated[p.UID] = writtenPod{text, now, time.Now(), last.earlier}
}

// boundPod is the annotation of a pod, its UID as the kubelet knows it, and whether
// a container of it is unrecorded or the pod leaves.
type boundPod struct {
	allocation.Bound
	uid        string
	unrecorded bool
}

func of(p *corev1.Pod, uid string) bool { return uid == "" || apiserver.HasUID(p, uid) }

// bound are the annotations of all pods with shares.
func (t *shares) bound() map[types.NamespacedName]*boundPod {
	all := make(map[types.NamespacedName]*boundPod)
	view := t.state.View()
	for _, b := range view.Allocations() {
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
	for p := range view.Expiring() {
		if key := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); all[key] == nil {
			all[key] = &boundPod{uid: p.UID, unrecorded: true}
		}
	}
	return all
}
