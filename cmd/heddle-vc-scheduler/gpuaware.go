package main

import (
	"math"

	"volcano.sh/volcano/pkg/scheduler/api"
	"volcano.sh/volcano/pkg/scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/affinity"
)

const gpuAwareName = "gpu-aware"

// full is the score of the best node with weight 1 and without loss, as from
// Volcano's own plugins.
const full = 100

// gpuAware is the plugin gpu-aware: of the nodes that have room for a pod it prefers the one whose free GPUs go
// together best, and whose other GPUs lose least by it. Nodes publish both ([affinity.Table]); the plugin weighs them
// against each other and against the scores of other plugins. It rejects no node, and lives as long as a session.
type gpuAware struct {
	weight, lossWeight float64
	domains            wellknown.Domains
}

// newGPUAware makes the plugin. Its arguments are weight and loss.weight, both 1 by default, and
// vendor and card, which form the name of the GPU resource: by default that of every known vendor.
func newGPUAware(arguments framework.Arguments) framework.Plugin {
	p := &gpuAware{weight: 1, lossWeight: 1, domains: wellknown.AutoDomains()}
	arguments.GetString(&p.domains.Vendor, "vendor")
	arguments.GetString(&p.domains.GPU, "card")
	arguments.GetFloat64(&p.weight, "weight")
	arguments.GetFloat64(&p.lossWeight, "loss.weight")
	return p
}

// Name returns the plugin's.
func (*gpuAware) Name() string { return gpuAwareName }

// OnSessionOpen adds the score of nodes.
func (p *gpuAware) OnSessionOpen(session *framework.Session) {
	session.AddBatchNodeOrderFn(gpuAwareName, p.scores)
}

// OnSessionClose has nothing to do.
func (*gpuAware) OnSessionClose(*framework.Session) {}

// scores has the scores of the nodes with room for a pod. The bandwidths that they
// publish depend on the machine, so the greatest of all counts as 100: with twice the
// weights all differences are twice as large. A node that publishes nothing about such
// a request has the lowest score of the others.
func (p *gpuAware) scores(task *api.TaskInfo, nodes []*api.NodeInfo) (map[string]float64, error) {
	gpus := int64(gpusOf(task.Resreq, p.domains))
	out := make(map[string]float64, len(nodes))
	greatest, lowest := int64(1), math.Inf(1)
	for _, node := range nodes {
		score, loss, ok := affinity.ParseTable(node.Node.Annotations[wellknown.GPUTopology]).Of(gpus)
		if !ok {
			continue
		}
		greatest = max(greatest, score, loss)
		out[node.Name] = p.weight*float64(score) - p.lossWeight*float64(loss)
		lowest = min(lowest, out[node.Name])
	}
	if len(out) == 0 {
		return out, nil
	}
	for _, node := range nodes {
		value, ok := out[node.Name]
		if !ok {
			value = lowest
		}
		out[node.Name] = full * value / float64(greatest)
	}
	return out, nil
}
