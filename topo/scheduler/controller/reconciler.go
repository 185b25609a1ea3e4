package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	// maxWrites bounds a round.
	maxWrites = 40
	// deleteAfter is how long a gang has had no pod before its object is deleted:
	// operators replace a job's pods all at once.
	deleteAfter = 10 * time.Second
	// createEvery is the least time between two creations of one object.
	createEvery = 10 * time.Second
	// retryAfter is how long an object is left alone that could not be written, and
	// forbiddenFor how long all are if the API server forbids the write.
	retryAfter, forbiddenFor = 30 * time.Second, 5 * time.Minute
	requestTimeout           = 10 * time.Second
)

// reconciler writes PodGroup objects. It is for one goroutine.
type reconciler struct {
	client  dynamic.NamespaceableResourceInterface
	log     *slog.Logger
	history map[types.NamespacedName]*history
	until   time.Time
	failure string
}

// history is what is remembered of an object between rounds.
type history struct {
	// emptied is when the gang was found to have no pods, created when its object
	// was created last, retry until when it is left alone.
	emptied, created, retry time.Time
	// status is the one that was written last: a schema may drop some of it, and
	// another controller may write it as well.
	status map[string]any
	uid    types.UID
}

// round does for each object what it needs, at most one write. gangs are those that
// have pods, objects those in the cluster.
func (r *reconciler) round(
	ctx context.Context, now time.Time, gangs map[types.NamespacedName]*podGroup, objects []any,
) {
	existing := map[types.NamespacedName]*unstructured.Unstructured{}
	for _, o := range objects {
		if o, ok := o.(*unstructured.Unstructured); ok {
			key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
			existing[key] = o
			if _, ok := gangs[key]; !ok {
				gangs[key] = nil // An object without pods has its turn too.
			}
		}
	}
	for key := range r.history {
		if gangs[key] == nil && existing[key] == nil {
			delete(r.history, key)
		}
	}
	budget := maxWrites
	for key, g := range gangs {
		if budget > 0 && r.reconcile(ctx, key, g, existing[key], now) {
			budget--
		}
	}
}

// reconcile does what one object needs, and reports whether it wrote.
func (r *reconciler) reconcile(
	ctx context.Context, key types.NamespacedName, g *podGroup, o *unstructured.Unstructured, now time.Time,
) (wrote bool) {
	h := cmp.Or(r.history[key], &history{})
	r.history[key] = h
	what := decide(g, o)
	if what != remove {
		h.emptied = time.Time{}
	} else if h.emptied.IsZero() {
		h.emptied = now
	}
	switch {
	case what == nothing, now.Before(h.retry), now.Before(r.until), ctx.Err() != nil,
		what == create && now.Sub(h.created) < createEvery,
		what == updateStatus && h.uid == o.GetUID() && maps.Equal(h.status, g.status()),
		what == remove && now.Sub(h.emptied) < deleteAfter:
		return false
	case what == create:
		h.created = now
	}
	if err := r.write(ctx, what, key, g, o); err != nil {
		r.failed(ctx, err, h, now)
		return true
	}
	r.failure = ""
	if what == updateStatus {
		h.status, h.uid = g.status(), o.GetUID()
	}
	return true
}

func (r *reconciler) write(
	ctx context.Context, what action, key types.NamespacedName, g *podGroup, o *unstructured.Unstructured,
) (err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := r.client.Namespace(key.Namespace)
	change := func(to *unstructured.Unstructured, subresources ...string) error {
		text, err := patch(o, to)
		if err == nil {
			options := metav1.PatchOptions{FieldManager: manager}
			_, err = client.Patch(ctx, key.Name, types.MergePatchType, text, options, subresources...)
		}
		return err
	}
	switch what {
	case create:
		_, err = client.Create(ctx, g.object(), metav1.CreateOptions{FieldManager: manager})
	case updateSpec:
		err = change(g.described(o))
	case updateStatus:
		err = change(g.reported(o), "status")
	case remove:
		err = client.Delete(ctx, key.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())},
		})
	case nothing:
	}
	return err
}

// failed decides when to try again. A conflict is no failure: the next round reads
// what the other writer wrote.
func (r *reconciler) failed(ctx context.Context, err error, h *history, now time.Time) {
	switch {
	case errors.Is(ctx.Err(), context.Canceled), apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The object, its namespace or its CRD is gone or terminating.
		h.retry = now.Add(retryAfter)
		return
	case apierrors.IsForbidden(err):
		r.until = now.Add(forbiddenFor)
	default:
		h.retry = now.Add(retryAfter)
	}
	if text := string(apierrors.ReasonForError(err)); text != r.failure {
		r.failure = text
		r.log.WarnContext(ctx, "cannot write podgroups", "err", err)
	}
}
