package scheduler

import (
	"slices"
	"sync"

	"github.com/heddle-dev/heddle/sharing"
)

// accounts remember what the cards of nodes have left. Reading that from the
// pods' annotations costs more than all else that is done for a node, and a
// scheduling cycle changes one node. Many may ask at once.
type accounts struct{ nodes sync.Map }

// account holds while the node's generation does: every pod that comes to the
// node, changes or goes makes another. What is decided for a pod is decided
// before the next cycle sees it on its node.
type account struct {
	generation int64
	cards      []sharing.Card
	err        error
}

// of is the account of a node, made anew if the node changed. The caller may
// change what it gets.
func (a *accounts) of(node string, generation int64, read func() ([]sharing.Card, error)) ([]sharing.Card, error) {
	had, _ := a.nodes.Load(node)
	now, ok := had.(*account)
	if !ok || now.generation != generation {
		now = &account{generation: generation}
		now.cards, now.err = read()
		a.nodes.Store(node, now)
	}
	return slices.Clone(now.cards), now.err
}

func (a *accounts) forget(node string) { a.nodes.Delete(node) }
