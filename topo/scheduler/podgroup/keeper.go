package podgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	// every is the time between two rounds, and so between two writes of one
	// object.
	every = 2 * time.Second
	// maxWrites bounds a round.
	maxWrites = 40
	// grace is how long a gang has had no pod before its object goes: operators
	// make a job's pods anew, all at once.
	grace = 10 * time.Second
	// again is the least time between two makings of one object.
	again = 10 * time.Second
	// later is how long a gang is left alone whose object could not be written,
	// and refused how long all are if we may not write.
	later, refused = 30 * time.Second, 5 * time.Minute
	// patience bounds one request.
	patience = 10 * time.Second
)

// Store is what is known of the objects: a cache.Store of an informer.
type Store interface {
	List() []any
}

// Keeper keeps the objects.
type Keeper struct {
	// Client is of the PodGroups, Store has them.
	Client dynamic.NamespaceableResourceInterface
	Store  Store
	// Gangs are those that have pods; false if it is not for this process to
	// write, or not known yet.
	Gangs func() (map[types.NamespacedName]*Gang, bool)
	Log   *slog.Logger

	notes   map[types.NamespacedName]*notes
	until   time.Time
	failure string
}

// notes are what is remembered of an object between rounds.
type notes struct {
	// emptied is when the gang was found to have no pods, made when its object
	// was made last, until when it is left alone.
	emptied, made, until time.Time
	// reported is the status that was written last: a schema may have no place
	// for all of it, and another one may write as well.
	reported Status
	uid      types.UID
}

// Run writes until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.round(ctx, time.Now())
		}
	}
}

// round does for each object what is to be done, at most one thing.
func (k *Keeper) round(ctx context.Context, now time.Time) {
	if now.Before(k.until) {
		return
	}
	gangs, ok := k.Gangs()
	if !ok {
		return
	}
	if k.notes == nil {
		k.notes = map[types.NamespacedName]*notes{}
	}
	objects := map[types.NamespacedName]*unstructured.Unstructured{}
	for _, o := range k.Store.List() {
		if o, ok := o.(*unstructured.Unstructured); ok {
			objects[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = o
		}
	}
	for key := range k.notes {
		if gangs[key] == nil && objects[key] == nil {
			delete(k.notes, key)
		}
	}
	budget := maxWrites
	for key, g := range gangs {
		if budget > 0 && k.keep(ctx, key, g, objects[key], now) {
			budget--
		}
	}
	for key, o := range objects {
		if budget > 0 && gangs[key] == nil && k.keep(ctx, key, nil, o, now) {
			budget--
		}
	}
}

// keep does what is to be done about one object, and tells whether it wrote.
func (k *Keeper) keep(
	ctx context.Context, key types.NamespacedName, g *Gang, o *unstructured.Unstructured, now time.Time,
) (wrote bool) {
	what := decide(g, o)
	n := k.notes[key]
	if n == nil && what != nothing {
		n = &notes{}
		k.notes[key] = n
	}
	if what != remove && n != nil {
		n.emptied = time.Time{}
	}
	if what == nothing || now.Before(n.until) || now.Before(k.until) || ctx.Err() != nil {
		return false
	}
	switch what {
	case create:
		if now.Sub(n.made) < again {
			return false
		}
		n.made = now
	case report:
		if n.reported == g.Status && n.uid == o.GetUID() {
			return false
		}
	case remove:
		if n.emptied.IsZero() {
			n.emptied = now
		}
		if now.Sub(n.emptied) < grace {
			return false
		}
	default:
	}
	if err := k.write(ctx, what, key, g, o); err != nil {
		k.failed(ctx, err, n, now)
		return true
	}
	k.failure = ""
	if what == report {
		n.reported, n.uid = g.Status, o.GetUID()
	}
	return true
}

// write does it.
func (k *Keeper) write(
	ctx context.Context, what act, key types.NamespacedName, g *Gang, o *unstructured.Unstructured,
) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := k.Client.Namespace(key.Namespace)
	patch := func(patch map[string]any, subresources ...string) error {
		text, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("podgroup %s: %w", key, err)
		}
		options := metav1.PatchOptions{FieldManager: Manager}
		_, err = client.Patch(ctx, key.Name, types.MergePatchType, text, options, subresources...)
		return err
	}
	switch what {
	case create:
		_, err := client.Create(ctx, g.object(), metav1.CreateOptions{FieldManager: Manager})
		return err
	case describe:
		return patch(g.describing(o))
	case report:
		return patch(g.reporting(o), "status")
	case remove:
		return client.Delete(ctx, key.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: new(o.GetUID()), ResourceVersion: new(o.GetResourceVersion())},
		})
	default:
		return nil
	}
}

// failed notes when to try again. What another one was faster with is no
// failure: the next round sees it.
func (k *Keeper) failed(ctx context.Context, err error, n *notes, now time.Time) {
	switch {
	case errors.Is(ctx.Err(), context.Canceled), apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The object, its namespace or its CRD has gone or is going.
		n.until = now.Add(later)
		return
	case apierrors.IsForbidden(err):
		k.until = now.Add(refused)
	default:
		n.until = now.Add(later)
	}
	if text := fmt.Sprint(apierrors.ReasonForError(err)); text != k.failure {
		k.failure = text
		k.Log.WarnContext(ctx, "cannot write podgroups", "err", err)
	}
}
