package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// maxWalk bounds the leaves of one worker, as NodeTopology does.
const maxWalk = 32

// discovery writes status.walk of NodeTopologies, which tells a node's worker the leaves with
// uplinks to discover.
type discovery struct {
	client  metadata.ResourceInterface
	metrics *metrics
	// sent holds the reports that have been written to. They are written again only after the watch
	// brings another version.
	sent map[string]*informers.Report
}

func newDiscovery(p *Publisher) *discovery {
	return &discovery{
		client: p.options.Objects.Resource(v1alpha1.Resource()), metrics: p.metrics,
		sent: map[string]*informers.Report{},
	}
}

func (d *discovery) sync(ctx context.Context, s *snapshot.Snapshot, full bool) error {
	sent := d.sent
	d.sent = map[string]*informers.Report{}
	var faults []error
	for _, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		if !full && sent[n.Name] == n.Report {
			d.sent[n.Name] = n.Report
			continue
		}
		var want []string
		if n.Believed() != nil {
			want = s.Discovery[n.Name]
		}
		want = want[:min(len(want), maxWalk)]
		if slices.Equal(want, n.Report.Walk) {
			continue
		}
		if err := d.write(ctx, n.Name, want); err != nil {
			faults = append(faults, err)
			continue
		}
		d.sent[n.Name] = n.Report
	}
	return summed("write uplink discovery", faults)
}

// write replaces the list and touches nothing else: the heartbeat beside it is
// the worker's.
func (d *discovery) write(ctx context.Context, name string, leaves []string) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"walk": leaves}}) // null removes the field.
	if err != nil {
		return fmt.Errorf("encode uplink discovery: %w", err)
	}
	options := metav1.PatchOptions{FieldManager: FieldManager}
	_, err = d.client.Patch(ctx, name, types.MergePatchType, body, options, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err := d.metrics.count("walks", err); err != nil {
		return fmt.Errorf("write status.walk of NodeTopology %s: %w", name, err)
	}
	return nil
}
