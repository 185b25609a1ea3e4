package informers

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// stored is the part of an object that an informer keeps.
type stored[T any] interface {
	*T
	metav1.ObjectMetaAccessor
	// keep returns the value to store: old if nothing that is used changed.
	keep(old *T) *T
}

// object is an object that an informer receives.
type object interface {
	runtime.Object
	metav1.Object
}

// informer is a client-go informer with a transform that keeps only the used part of each object.
// It records when the API server last sent anything.
type informer[T any, P stored[T]] struct {
	controller cache.Controller
	store      cache.Indexer
	clock      clock.PassiveClock
	contact    atomic.Int64 // Nanoseconds since 1970, 0 for never.
}

// newInformer makes an informer. wants selects the objects to store, nil for all. read makes the
// value of an object. changed is called with nil for a missing old or new value, and with the same
// value twice if [stored.keep] kept it.
func newInformer[T any, P stored[T], K object](
	clock clock.PassiveClock, client cache.Getter, resource string, example K, wants func(K) bool, read func(K) *T,
	changed func(old, now *T),
) *informer[T, P] {
	i := &informer[T, P]{clock: clock}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: i.listWatch(client, resource, func(o runtime.Object) bool {
			k, ok := o.(K)
			return !ok || wants == nil || wants(k) || i.get(keyOf(k)) != nil
		}),
		ObjectType: example,
		Handler:    handler(changed),
		Indexers:   cache.Indexers{},
		Transform: func(obj any) (any, error) {
			k, ok := obj.(K)
			if !ok {
				return obj, nil // The queue passes on what the list has transformed.
			}
			now := read(k)
			if old := i.get(keyOf(k)); old != nil {
				return P(now).keep(old), nil
			}
			return now, nil
		},
	})
	i.controller = controller
	i.store, _ = store.(cache.Indexer) // A store with Indexers is an Indexer.
	return i
}

// listWatch lists and watches all objects of a resource, notes each contact and
// drops objects that are not wanted before anything is stored of them.
func (i *informer[T, P]) listWatch(
	client cache.Getter, resource string, wants func(runtime.Object) bool,
) *cache.ListWatch {
	all := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything())
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := all.ListWithContextFunc(ctx, o)
			if err != nil {
				return nil, err
			}
			i.touch()
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, err
			}
			return list, meta.SetList(list, slices.DeleteFunc(items, func(o runtime.Object) bool { return !wants(o) }))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := all.WatchFuncWithContext(ctx, o)
			if err != nil {
				return nil, err
			}
			return watch.Filter(events, func(e watch.Event) (watch.Event, bool) {
				if e.Type != watch.Error {
					i.touch() // Every minute at least, by a bookmark.
				}
				return e, e.Type != watch.Added && e.Type != watch.Modified || wants(e.Object)
			}), nil
		},
	}
}

func handler[T any](changed func(old, now *T)) cache.ResourceEventHandler {
	value := func(obj any) *T {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		v, _ := obj.(*T)
		return v
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(nil, value(obj)) },
		UpdateFunc: func(old, now any) { changed(value(old), value(now)) },
		DeleteFunc: func(obj any) { changed(value(obj), nil) },
	}
}

func (i *informer[T, P]) touch() { i.contact.Store(i.clock.Now().UnixNano()) }

// get returns the value of a key, or nil.
func (i *informer[T, P]) get(key string) *T {
	obj, _, _ := i.store.GetByKey(key) // It never fails.
	v, _ := obj.(*T)
	return v
}

// keyOf returns the key by which client-go stores an object.
func keyOf(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// contactTime is zero for never.
func contactTime(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
