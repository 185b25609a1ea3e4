package informers

import (
	"sync"
	"time"
)

// Feed collects the changes of one kind of object until they are taken. Any
// number of changes of one object between two takes are one.
type Feed[T any] struct {
	// signal has capacity one.
	signal chan<- struct{}
	now    func() time.Time

	// mu guards the rest.
	mu      sync.Mutex
	changed map[string]*T
	all     bool
	synced  bool
	contact time.Time
}

// Changes are what happened since the last take.
type Changes[T any] struct {
	// All tells that objects which are not among the changes are gone.
	All bool
	// Changed are the newest versions by key, nil for what is gone.
	Changed map[string]*T
}

// Take hands the changes over.
func (f *Feed[T]) Take() Changes[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := Changes[T]{All: f.all, Changed: f.changed}
	f.all, f.changed = false, nil
	return c
}

// Synced tells whether all objects have been seen once.
func (f *Feed[T]) Synced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced
}

// Contact is when the API server last said anything, if only that nothing
// changed, which it does every minute. Zero means never.
func (f *Feed[T]) Contact() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.contact
}

// put notes a version; nil means that the object is gone.
func (f *Feed[T]) put(key string, value *T) {
	f.mu.Lock()
	if f.changed == nil {
		f.changed = map[string]*T{}
	}
	if value == nil && f.all {
		delete(f.changed, key)
	} else {
		f.changed[key] = value
	}
	f.contact = f.now()
	f.mu.Unlock()
	f.wake()
}

// replace notes that these objects are all.
func (f *Feed[T]) replace(all map[string]*T) {
	f.mu.Lock()
	f.changed, f.all, f.synced, f.contact = all, true, true, f.now()
	f.mu.Unlock()
	f.wake()
}

// touch notes that the API server is there.
func (f *Feed[T]) touch() {
	f.mu.Lock()
	f.contact = f.now()
	f.mu.Unlock()
}

func (f *Feed[T]) wake() {
	select {
	case f.signal <- struct{}{}:
	default:
	}
}
