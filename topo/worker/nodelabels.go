package worker

import (
	"context"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// NodeLabels takes the groups of a node from labels of its Node, as clouds and
// provisioning tools write them: for machines without visible cables, such as virtual
// functions of InfiniBand HCAs.
type NodeLabels struct{}

// Kind implements [Source].
func (NodeLabels) Kind() v1alpha1.Source { return v1alpha1.SourceNodeLabels }

// Discover takes the labels that the Node has: a level that it lacks is left out.
func (NodeLabels) Discover(_ context.Context, q Query) Report {
	var r Report
	for _, key := range q.Topology.PathLabels {
		if value := q.Labels[string(key)]; value != "" {
			r.Path = append(r.Path, value)
		}
	}
	return r
}
