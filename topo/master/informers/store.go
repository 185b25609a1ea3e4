package informers

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// store is what a reflector fills: it keeps nothing itself.
type store[T any] struct {
	feed *Feed[T]
	// read makes a fact of an object; nil means that nothing of it is used,
	// false that it is another kind of object.
	read func(obj any) (*T, bool)
	// blank answers what nobody asks of a kept object.
	blank metav1.ObjectMeta
}

// kept stands for an object whose fact has been read. While the API server
// streams all objects, the reflector holds one of these for each.
type kept[T any] struct {
	metav1.Object
	namespace, name string
	value           *T
}

// GetName and GetNamespace make the reflector's key.
func (k *kept[T]) GetName() string      { return k.name }
func (k *kept[T]) GetNamespace() string { return k.namespace }

var _ cache.TransformingStore = &store[Node]{}

// Transformer is what the reflector does to an object before it holds it.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.keep(obj) }
}

func (s *store[T]) keep(obj any) (*kept[T], error) {
	if k, ok := obj.(*kept[T]); ok {
		return k, nil
	}
	about, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("read an object of the API server: %w", err)
	}
	value, ok := s.read(obj)
	if !ok {
		return nil, fmt.Errorf("the API server sent a %T", obj)
	}
	return &kept[T]{Object: &s.blank, namespace: about.GetNamespace(), name: about.GetName(), value: value}, nil
}

func (k *kept[T]) key() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// Add is called by the reflector.
func (s *store[T]) Add(obj any) error {
	k, err := s.keep(obj)
	if err == nil {
		s.feed.put(k.key(), k.value)
	}
	return err
}

// Update is called by the reflector.
func (s *store[T]) Update(obj any) error { return s.Add(obj) }

// Delete is called by the reflector.
func (s *store[T]) Delete(obj any) error {
	k, err := s.keep(obj)
	if err == nil {
		s.feed.put(k.key(), nil)
	}
	return err
}

// Replace is called by the reflector with all objects there are.
func (s *store[T]) Replace(list []any, _ string) error {
	all := make(map[string]*T, len(list))
	for _, obj := range list {
		k, err := s.keep(obj)
		if err != nil {
			return err
		}
		if k.value != nil {
			all[k.key()] = k.value
		}
	}
	s.feed.replace(all)
	return nil
}

// Bookmark is called by the reflector when the API server says that it is
// still there.
func (s *store[T]) Bookmark(string) error {
	s.feed.touch()
	return nil
}

// Resync is called by the reflector and has nothing to do here.
func (s *store[T]) Resync() error { return nil }
