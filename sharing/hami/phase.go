package hami

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// maxPhases bounds the phases that wait to be written; later ones are dropped.
	// HAMi makes metrics of them.
	maxPhases = 256
	// maxWritten bounds the pods whose phase is remembered.
	maxWritten = 1024

	phaseTries   = 2
	phaseSuccess = "success"
	phaseFailed  = "failed"
)

type phase struct {
	pod   types.NamespacedName
	uid   types.UID
	value string
}

// Bound queues the phase of a pod: whether the binding of one of its containers
// succeeded. Success stays: a container that fails to start again has failed
// after the binding. Pods that HAMi did not bind get no phase. Bound never waits.
func (b *Plugin) Bound(pod types.NamespacedName, uid types.UID, ok bool) {
	one := phase{pod: pod, uid: uid, value: phaseFailed}
	if ok {
		one.value = phaseSuccess
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if had := b.written[uid]; had == one.value || had == phaseSuccess {
		return
	}
	select {
	case b.phases <- one:
		if len(b.written) >= maxWritten {
			clear(b.written)
		}
		b.written[uid] = one.value
	default:
		b.Log.Warn("queue of bind phases full, phase dropped", "pod", pod.String())
	}
}

// writePhases writes phases until ctx ends.
func (b *Plugin) writePhases(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case one := <-b.phases:
			b.writePhase(ctx, one)
		}
	}
}

func (b *Plugin) writePhase(ctx context.Context, one phase) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	var err error
	for range phaseTries {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		if err = b.tryPhase(ctx, one); err == nil {
			return
		}
		pause.Reset(firstRetry)
	}
	b.Log.DebugContext(ctx, "writing the bind phase failed", "pod", one.pod.String(), "err", err)
}

// tryPhase annotates a pod that HAMi bound and that does not have the phase yet.
func (b *Plugin) tryPhase(ctx context.Context, one phase) error {
	pod, err := b.podOf(ctx, one)
	if err != nil {
		return err
	}
	had := pod.Annotations[wellknown.HAMiBindPhase]
	if _, bound := pod.Annotations[wellknown.HAMiBindTime]; !bound || had == one.value || had == phaseSuccess {
		return nil
	}
	return b.Writer.AnnotatePod(ctx, one.pod, one.uid, map[string]*string{wellknown.HAMiBindPhase: &one.value})
}

// podOf is the pod as it is watched, or read if the watch is behind.
func (b *Plugin) podOf(ctx context.Context, one phase) (*corev1.Pod, error) {
	pods, _, _ := b.Watched.Pods()
	for _, p := range pods {
		if p.UID == one.uid {
			return p, nil
		}
	}
	return b.Reader.ReadPod(ctx, one.pod.Namespace, one.pod.Name)
}
