package sgpu

import (
	"math"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/topo/affinity"
)

// maxTopologies bounds those that are kept.
const maxTopologies = 1024

// topology is what a node publishes of its whole GPUs. Nodes of one product with the same GPUs in
// use share one: that of each node by itself is out of the processor's cache whenever it is asked.
type topology struct {
	// gpu is the resource whose GPUs it is of, empty if the node does not state it.
	gpu   corev1.ResourceName
	table affinity.Table
}

// topologyKey are the name of the resource and the text of the table.
type topologyKey struct{ gpu, text string }

type topologies struct {
	mu    sync.Mutex
	byKey map[topologyKey]*topology
}

func (t *topologies) of(key topologyKey) *topology {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.byKey[key]
	if known == nil {
		if t.byKey == nil || len(t.byKey) >= maxTopologies {
			t.byKey = map[topologyKey]*topology{}
		}
		known = &topology{corev1.ResourceName(key.gpu), affinity.ParseTable(key.text)}
		t.byKey[key] = known
	}
	return known
}

// score is that of a request for so many GPUs of a resource.
func (t *topology) score(gpu corev1.ResourceName, gpus int64, w Weights) int64 {
	if t.gpu != "" && t.gpu != gpu {
		return noScore // It is of another maker's GPUs.
	}
	score, loss, ok := t.table.Of(gpus)
	if !ok {
		return noScore
	}
	return int64(math.Round(w.Weight*float64(score) - w.LossWeight*float64(loss)))
}
