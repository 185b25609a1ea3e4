package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// kids are the children of a group: a sorted list that snapshots share and
// that is therefore copied to be changed, and what is known of all of them.
type kids struct {
	sorted []*Element
	// out and in are the changes that are not in sorted yet.
	out, in []*Element

	ready, down int
	nodes       Count
	size        int
	digest      digest
}

func (k *kids) add(e *Element) {
	k.in = append(k.in, e)
	k.size += e.size
	k.digest.add(e.digest)
	k.count(e, 1)
}

func (k *kids) take(e *Element) {
	k.out = append(k.out, e)
	k.size -= e.size
	k.digest.sub(e.digest)
	k.count(e, -1)
}

func (k *kids) count(e *Element, sign int) {
	k.nodes.add(e.Nodes, sign)
	switch e.Status {
	case v1alpha1.StatusReady:
		k.ready += sign
	case v1alpha1.StatusNotReady:
		k.down += sign
	}
}

// few is up to how many changes are made one by one.
const few = 8

// apply makes a new sorted list.
func (k *kids) apply() {
	if len(k.out)+len(k.in) == 0 {
		return
	}
	if len(k.out)+len(k.in) <= few {
		k.sorted = k.patched()
	} else {
		k.sorted = k.merged()
	}
	k.out, k.in = nil, nil
}

func (k *kids) patched() []*Element {
	list := make([]*Element, len(k.sorted), len(k.sorted)+len(k.in))
	copy(list, k.sorted)
	in := slices.Clone(k.in)
	for _, e := range k.out {
		// The common case first: the same place, another status.
		if j := slices.IndexFunc(in, func(n *Element) bool { return compareElements(n, e) == 0 }); j >= 0 {
			if i, found := slices.BinarySearchFunc(list, e, compareElements); found {
				list[i] = in[j]
				in = slices.Delete(in, j, j+1)
				continue
			}
		}
		if i, found := slices.BinarySearchFunc(list, e, compareElements); found {
			list = slices.Delete(list, i, i+1)
		}
	}
	for _, e := range in {
		i, _ := slices.BinarySearchFunc(list, e, compareElements)
		list = slices.Insert(list, i, e)
	}
	return list
}

func (k *kids) merged() []*Element {
	gone := make(map[*Element]struct{}, len(k.out))
	for _, e := range k.out {
		gone[e] = struct{}{}
	}
	list := make([]*Element, 0, len(k.sorted)+len(k.in)-len(k.out))
	in := make([]*Element, 0, len(k.in))
	for _, e := range k.in {
		if _, out := gone[e]; !out {
			in = append(in, e)
		}
	}
	slices.SortFunc(in, compareElements)
	for _, e := range k.sorted {
		if _, out := gone[e]; out {
			continue
		}
		for len(in) > 0 && compareElements(in[0], e) < 0 {
			list = append(list, in[0])
			in = in[1:]
		}
		list = append(list, e)
	}
	return append(list, in...)
}
