package sgpu

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationCache parses an annotation of a node once for each value that it has.
// It is safe for concurrent use.
type AnnotationCache[T any] struct{ nodes sync.Map }

type annotation[T any] struct {
	text  string
	value T
	err   error
}

// Read is the parsed annotation of a node; parse gets "" if there is none.
func (c *AnnotationCache[T]) Read(node *corev1.Node, key string, parse func(string) (T, error)) (T, error) {
	text := node.Annotations[key]
	if cached, ok := c.nodes.Load(node.Name); ok {
		if a, _ := cached.(*annotation[T]); a.text == text {
			return a.value, a.err
		}
	}
	a := &annotation[T]{text: text}
	a.value, a.err = parse(text)
	c.nodes.Store(node.Name, a)
	return a.value, a.err
}

// Forget is for nodes that are gone.
func (c *AnnotationCache[T]) Forget(node string) { c.nodes.Delete(node) }
