package hami

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// maxPhases wait to be told; later ones are not. HAMi makes metrics of them.
	maxPhases = 256
	// maxTold bounds what is remembered of pods.
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

// Bound tells the pod, later, how binding one of its containers ended. Success
// stays: a container that fails to start again has failed after the binding.
// Pods that HAMi did not bind are not told. It never waits.
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
		b.Log.Warn("too many pods wait to be told how binding ended; one is not", "pod", pod.String())
	}
}

// tell writes phases until ctx ends.
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
	b.Log.DebugContext(ctx, "a pod is not told how binding ended", "pod", one.pod.String(), "err", err)
}

// tellNow tells a pod that is HAMi's and does not have the phase yet.
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
