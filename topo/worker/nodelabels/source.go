// Package nodelabels takes the groups of a node from labels of its Node, as
// clouds and provisioning tools write them: for machines whose cables no one
// sees, such as virtual functions of InfiniBand HCAs.
//
// It reads nothing itself: the labels are in the query.
package nodelabels

import (
	"context"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

// Source has no state.
type Source struct{}

// Kind implements [worker.Source].
func (Source) Kind() v1alpha1.Source { return v1alpha1.SourceNodeLabels }

// Discover takes the labels that the Node has: a level that it lacks is left
// out.
func (Source) Discover(_ context.Context, q worker.Query) worker.Report {
	var r worker.Report
	for _, key := range q.Topology.PathLabels {
		if value := q.Labels[string(key)]; value != "" {
			r.Path = append(r.Path, value)
		}
	}
	return r
}
