package hami

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	// maxPhases bounds the phases that wait to be written; later ones are dropped.
	// HAMi makes metrics of them.
	maxPhases = 256
	// maxWritten bounds the remembered phases of pods.
	maxWritten = 1024

	phaseTries   = 2
	phaseSuccess = "success"
	phaseFailed  = "failed"
)

type phase struct {
	pod   types.NamespacedName
	uid   types.UID
	value string
	tries int
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
	if len(b.phases) >= maxPhases {
		b.Log.Warn("queue of bind phases full, phase dropped", "pod", pod.String())
		return
	}
	if len(b.written) >= maxWritten {
		clear(b.written)
	}
	b.written[uid] = one.value
	b.phases = append(b.phases, one)
	b.changed.Notify()
}

// writePhases writes the phases that wait, each in two rounds at most.
func (b *Plugin) writePhases(ctx context.Context) error {
	b.mu.Lock()
	waiting := b.phases
	b.phases = nil
	b.mu.Unlock()
	var again []phase
	var errs []error
	for _, one := range waiting {
		err := b.writePhase(ctx, one)
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			continue // The pod is gone, or another one has its name.
		}
		if one.tries++; err != nil && one.tries < phaseTries {
			again = append(again, one)
		}
		errs = append(errs, err)
	}
	b.mu.Lock()
	b.phases = append(again, b.phases...)
	b.mu.Unlock()
	return errors.Join(errs...)
}

// writePhase annotates a pod that HAMi bound and that does not have the phase yet.
func (b *Plugin) writePhase(ctx context.Context, one phase) error {
	pods, _, _ := b.Watched.Pods()
	at := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == one.uid })
	var pod *corev1.Pod
	if at >= 0 {
		pod = pods[at]
	} else {
		// The watch is behind.
		var err error
		if pod, err = b.API.ReadPod(ctx, one.pod.Namespace, one.pod.Name); err != nil {
			return fmt.Errorf("bind phase: %w", err)
		}
	}
	had := pod.Annotations[wellknown.HAMiBindPhase]
	if _, bound := pod.Annotations[wellknown.HAMiBindTime]; !bound || had == one.value || had == phaseSuccess {
		return nil
	}
	return b.API.AnnotatePod(ctx, one.pod, one.uid, map[string]*string{wellknown.HAMiBindPhase: &one.value})
}
