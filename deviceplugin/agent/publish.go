package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
)

const (
	publishTimeout = 10 * time.Second
	publishRetry   = 15 * time.Second
	// publishAgain is how long the Node is trusted to say what it was told.
	publishAgain = 5 * time.Minute
)

// told is what the Node was told last, and when; zero is never.
type told struct {
	// conditions are by type.
	conditions    map[string]toldCondition
	annotations   map[string]string
	annotationsAt time.Time
	// empty are the resources without any device, by name.
	empty map[string]bool
}

type toldCondition struct {
	health.Condition
	at time.Time
}

// publishLoop tells the Node, apart from the loop that tells the kubelet: an
// API server that is slow must not hold back the health of a device.
func (a *Agent) publishLoop(ctx context.Context) error {
	if !a.API.Online() {
		return nil
	}
	last := &told{empty: map[string]bool{}, conditions: map[string]toldCondition{}}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.tell:
		case <-retry:
		}
		retry = nil
		if err := a.publish(ctx, last); err != nil && ctx.Err() == nil {
			a.Log.WarnContext(ctx, "the Node does not say yet what its devices are", "err", err, "retry_in", publishRetry)
			retry = time.After(publishRetry)
		}
	}
}

// publish tells what differs from the last time.
func (a *Agent) publish(ctx context.Context, last *told) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	short := a.shortages(a.now.Load())
	a.announce(ctx, short, last)
	return errors.Join(
		a.publishCondition(ctx, health.ConditionOf(short), last),
		a.publishCondition(ctx, modeCondition(a.cardStates()), last),
		a.publishGPUs(ctx, last),
	)
}

func (a *Agent) publishCondition(ctx context.Context, c health.Condition, last *told) error {
	if old := last.conditions[c.Type]; c == old.Condition && time.Since(old.at) < publishAgain {
		return nil
	}
	if err := a.API.SetCondition(ctx, c); err != nil {
		return err
	}
	last.conditions[c.Type] = toldCondition{c, time.Now()}
	return nil
}

// publishGPUs tells schedulers which whole GPUs are free, and how well they go
// together.
func (a *Agent) publishGPUs(ctx context.Context, last *told) error {
	name := a.config().Resources.GPU
	whole := a.all()[name]
	if whole == nil || whole.gpu == nil {
		return nil
	}
	held, err := a.state.Holders(ctx, name)
	if err != nil {
		return fmt.Errorf("who holds GPUs: %w", err)
	}
	now := map[string]string{
		wellknown.GPUTopology: whole.gpu.Annotation(held), wellknown.FreeGPUs: whole.gpu.Free(held).String(),
	}
	if maps.Equal(now, last.annotations) && time.Since(last.annotationsAt) < publishAgain {
		return nil
	}
	if err := a.API.Annotate(ctx, now); err != nil {
		return err
	}
	last.annotations, last.annotationsAt = now, time.Now()
	return nil
}

// announce makes Events of resources that have become, or are no longer,
// without any device. Health has Events of its own about single devices.
func (a *Agent) announce(ctx context.Context, short []health.Shortage, last *told) {
	now := map[string]bool{}
	var notices []health.NodeEvent
	for _, s := range short {
		if s.Cause != NothingToOffer {
			continue
		}
		if now[s.Resource] = true; !last.empty[s.Resource] {
			notices = append(notices, health.NodeEvent{
				Warning: true, Reason: string(NothingToOffer), Message: s.Resource + ": " + s.Message,
			})
		}
	}
	last.empty = now
	for _, n := range notices {
		if err := a.API.Record(ctx, n); err != nil {
			a.Log.WarnContext(ctx, "an Event could not be recorded", "err", err, "message", n.Message)
		}
	}
}
