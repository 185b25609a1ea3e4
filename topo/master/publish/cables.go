package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const (
	// cableDelay is the time for which a state must last before it is written: starting workers and
	// links pass through useless states.
	cableDelay = 5 * time.Second
	// again is the time between two writes for one node, in times of settling: a
	// link that flaps does not fill the API server.
	again = 6
	// maxWalk bounds the leaves of one worker, as NodeTopology does.
	maxWalk = 32
)

// cables writes what the tree shows of each node's cables: the status of its
// NodeTopology, with the leaves that its worker asks for uplinks, the condition HeddleFabric of its
// Node, and Events about what was found and what has recovered. It writes what changed, and nothing else.
type cables struct {
	*Publisher
	nodes, reports metadata.ResourceInterface
	events         *events
	// known holds the nodes with a pending or recent write: few of a large fleet.
	known map[string]*nodeCables
}

// nodeCables holds the state of one node's cables.
type nodeCables struct {
	node   *informers.Node
	report *informers.Report // Nil if it is not believed.
	want   informers.Cables
	// since is the time when want began to differ from the API server, or zero; wrote is the time
	// of the last write.
	since, wrote time.Time
	// onNode and onReport are the versions that this leader wrote to. It writes again only after
	// the watch brings another version.
	onNode   *informers.Node
	onReport *informers.Report
}

func newCables(p *Publisher) *cables {
	return &cables{
		Publisher: p, known: map[string]*nodeCables{},
		nodes:   p.options.Objects.Resource(corev1.SchemeGroupVersion.WithResource("nodes")),
		reports: p.options.Objects.Resource(v1alpha1.Resource()), events: newEvents(p),
	}
}

func (c *cables) sync(ctx context.Context, s *snapshot.Snapshot, full bool) error {
	if !s.StaleSince.IsZero() {
		return nil // The tree may be old, and the API server is away.
	}
	due, waiting := c.due(s, full, time.Now())
	var writes []func() error
	for _, k := range due {
		writes = append(writes, func() error { return c.write(ctx, k) })
	}
	err := run("write the state of cables", writes)
	if err == nil && waiting {
		err = errWaiting
	}
	return err
}

// due returns the nodes to write now, those with findings first. waiting means that
// others will be due.
func (c *cables) due(s *snapshot.Snapshot, full bool, now time.Time) (due []*nodeCables, waiting bool) {
	maps.DeleteFunc(c.known, func(name string, _ *nodeCables) bool {
		n := s.Nodes[name]
		return n == nil || n.Node == nil
	})
	for holders, e := range s.Tree.All() {
		n := s.Nodes[e.Name]
		if e.Kind != v1alpha1.KindNode || n == nil || n.Node == nil {
			continue
		}
		want := snapshot.Cables(holders, e, n.Believed())
		want.Walk = s.Discovery[e.Name][:min(len(s.Discovery[e.Name]), maxWalk)]
		k := c.look(n, want, full, now)
		switch {
		case k == nil:
		case now.Before(k.since.Add(c.options.CableDelay)), now.Before(k.wrote.Add(again * c.options.CableDelay)):
			waiting = true
		default:
			due = append(due, k)
		}
	}
	slices.SortStableFunc(due, func(a, b *nodeCables) int {
		return cmp.Compare(len(b.want.Findings), len(a.want.Findings))
	})
	return due, waiting
}

// look compares a node with its desired state; nil means that no write is needed.
func (c *cables) look(n *informers.NodeState, want informers.Cables, full bool, now time.Time) *nodeCables {
	k := c.known[n.Name]
	if k == nil {
		k = &nodeCables{}
	}
	if full {
		k.onNode, k.onReport = nil, nil
	}
	k.node, k.report, k.want = n.Node, n.Believed(), want
	if !c.conditionDiffers(k) && !k.statusDiffers() {
		if k.since = (time.Time{}); k.onNode == nil && k.onReport == nil {
			delete(c.known, n.Name)
		}
		return nil
	}
	c.known[n.Name] = k
	if k.since.IsZero() {
		k.since = now
	}
	return k
}

// condition returns the Node's desired condition, or the zero value.
func (c *cables) condition(k *nodeCables) informers.Condition {
	if !c.options.Exports.Conditions {
		return informers.Condition{}
	}
	return k.want.Summary.Value().Condition
}

func (c *cables) conditionDiffers(k *nodeCables) bool {
	return k.onNode != k.node && k.node.Fabric != unique.Make(c.condition(k))
}

func (k *nodeCables) statusDiffers() bool {
	return k.report != nil && k.onReport != k.report && !k.want.Equal(k.report.Cables)
}

// write brings the Node and the NodeTopology up to date, and reports the change.
func (c *cables) write(ctx context.Context, k *nodeCables) error {
	var faults []error
	if c.conditionDiffers(k) {
		err := c.writeCondition(ctx, k.node, c.condition(k))
		if faults = append(faults, err); err == nil {
			k.onNode = k.node
		}
	}
	if k.statusDiffers() {
		err := c.writeStatus(ctx, k)
		if faults = append(faults, err); err == nil {
			k.onReport = k.report
			if c.options.Exports.Conditions {
				c.events.changed(ctx, k.node.Name, k.report.Cables.Findings, k.want.Findings)
			}
		}
	}
	k.wrote = time.Now()
	return errors.Join(faults...)
}

// writeCondition replaces one condition of the Node and touches no other: the
// list is keyed by type in a strategic merge.
func (c *cables) writeCondition(ctx context.Context, n *informers.Node, want informers.Condition) error {
	now := metav1.NewTime(time.Now())
	condition := map[string]any{"type": wellknown.ConditionFabric, "$patch": "delete"}
	if want != (informers.Condition{}) {
		condition = map[string]any{
			"type": wellknown.ConditionFabric, "status": want.Status, "reason": want.Reason, "message": want.Message,
			"lastHeartbeatTime": now,
		}
		if n.Fabric.Value().Status != want.Status {
			condition["lastTransitionTime"] = now
		}
	}
	body := map[string]any{
		"metadata": map[string]any{"uid": n.UID}, "status": map[string]any{"conditions": []any{condition}},
	}
	if err := c.patch(ctx, c.nodes, n.Name, types.StrategicMergePatchType, "conditions", body); err != nil {
		return fmt.Errorf("write condition %s of Node %s: %w", wellknown.ConditionFabric, n.Name, err)
	}
	return nil
}

// writeStatus replaces what topo-master has in the status: the heartbeat beside it is
// the worker's.
func (c *cables) writeStatus(ctx context.Context, k *nodeCables) error {
	sum := k.want.Summary.Value()
	status := map[string]any{
		"leaf": orNull(sum.Leaf), "rails": orNull(sum.Rails), "findingCount": sum.Findings, "findings": k.want.Findings,
		"walk": k.want.Walk, "conditions": nil,
	}
	if want := sum.Condition; want != (informers.Condition{}) {
		at := metav1.NewTime(time.Now())
		if k.report.CablesSince != 0 && k.report.Cables.Summary.Value().Condition.Status == want.Status {
			at = metav1.NewTime(time.Unix(k.report.CablesSince, 0))
		}
		status["conditions"] = []metav1.Condition{{
			Type: wellknown.ConditionFabric, Status: metav1.ConditionStatus(want.Status), Reason: want.Reason,
			Message: want.Message, LastTransitionTime: at,
		}}
	}
	body := map[string]any{"status": status}
	if err := c.patch(ctx, c.reports, k.report.Name, types.MergePatchType, "cables", body); err != nil {
		return fmt.Errorf("write status of NodeTopology %s: %w", k.report.Name, err)
	}
	return nil
}

// orNull is null for an empty text: that removes a field.
func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// patch changes a status. A missing object is not an error.
func (c *cables) patch(
	ctx context.Context, client metadata.ResourceInterface, name string, kind types.PatchType, what string, body any,
) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = client.Patch(ctx, name, kind, b, metav1.PatchOptions{FieldManager: FieldManager}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return c.metrics.count(what, err)
}
