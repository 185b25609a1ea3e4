package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const (
	// eventBurst Events at once, and one a second after that: replacing a switch concerns hundreds
	// of nodes, and their conditions have the details.
	eventBurst = 100
	eventRate  = 1
	// nodeEvents bounds the Events of one node at a time.
	nodeEvents = 4
)

// events records Events on Nodes. It never waits, and never fails what it is
// about: an Event is a notice, the condition is the state.
type events struct {
	*Publisher
	limit flowcontrol.PassiveRateLimiter
}

func newEvents(p *Publisher) *events {
	return &events{Publisher: p, limit: flowcontrol.NewTokenBucketPassiveRateLimiter(eventRate, eventBurst)}
}

// event is an Event to record.
type event struct{ kind, reason, message string }

// changes returns the Events about the difference of two lists of findings.
func changes(before, now []v1alpha1.Finding) []event {
	var out []event
	for _, f := range now {
		if !slices.Contains(before, f) {
			out = append(out, event{corev1.EventTypeWarning, snapshot.Reason(f.Kind), f.Message})
		}
	}
	for _, f := range before {
		about := func(n v1alpha1.Finding) bool { return n.Port == f.Port }
		if !slices.ContainsFunc(now, about) {
			text := cmp.Or(f.Port, "the path") + " is as expected again; it was: " + f.Message
			out = append(out, event{corev1.EventTypeNormal, wellknown.EventCableRecovered, text})
		}
	}
	if more := len(out) - nodeEvents; more > 0 {
		out[nodeEvents-1].message += fmt.Sprintf("; and %d more changes, see the condition HeddleFabric", more)
		out = out[:nodeEvents]
	}
	return out
}

// changed records the changed findings.
func (e *events) changed(ctx context.Context, node string, before, now []v1alpha1.Finding) {
	for _, one := range changes(before, now) {
		if !e.limit.TryAccept() {
			e.options.Log.DebugContext(ctx, "event dropped: too many", "node", node, "reason", one.reason)
			continue
		}
		if err := e.metrics.count("events", e.send(ctx, node, one)); err != nil && ctx.Err() == nil {
			e.options.Log.WarnContext(ctx, "event not recorded", "node", node, "reason", one.reason, "err", err)
		}
	}
}

func (e *events) send(ctx context.Context, node string, one event) error {
	at := metav1.NewTime(time.Now())
	body, err := json.Marshal(&corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", node, at.UnixNano()), Namespace: metav1.NamespaceDefault,
		},
		// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Type:           one.kind, Reason: one.reason, Message: one.message,
		Source:         corev1.EventSource{Component: FieldManager},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	})
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return e.options.Raw.Post().Namespace(metav1.NamespaceDefault).Resource("events").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}
