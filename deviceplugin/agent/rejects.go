package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// rejectsFile is in the state directory.
	rejectsFile = "rejects.json"
	// settleTime is how long after the start of this process no rejected pod counts: its absence makes pods fail.
	settleTime = time.Minute
)

// rejects withdraws the node while it rejects pod after pod.
type rejects struct {
	*Options
	state   *devicestate.State
	last    *atomic.Pointer[publish.Round]
	started time.Time
	now     atomic.Pointer[breaker.State]
	// changed is set when now is another.
	changed notify.Signal
}

func newRejects(o *Options, state *devicestate.State, last *atomic.Pointer[publish.Round]) *rejects {
	x := &rejects{Options: o, state: state, last: last, started: o.now(), changed: notify.New()}
	var saved breaker.State
	text, err := hostfile.Read(x.file())
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.Log.Warn("rejected pods are counted from now on", "err", err)
	}
	if err != nil || saved.Phase != breaker.InService && !saved.Failing() {
		saved = breaker.State{}
	}
	x.now.Store(&saved)
	return x
}

func (x *rejects) file() string { return filepath.Join(x.StateDir, rejectsFile) }

// look takes the pods of the node. It is for one goroutine.
func (x *rejects) look(ctx context.Context) {
	pods, _, known := x.API.Pods()
	r, now, before := x.last.Load(), x.Options.now(), *x.now.Load()
	c := &r.Inventory.Config.Health
	var next breaker.State
	switch {
	case c.MaxWithdrawnPercent == 0 || x.Withdrawn.Name == "":
	case !known:
		return
	default:
		settled := now.Sub(x.started) >= settleTime && r.Release.Until.IsZero()
		if next = before.See(now, x.read(pods, r), settled, c.ProbeAfter); next.Due(now, c.ProbeAfter) {
			next = x.withdraw(ctx, next, now, r)
		}
	}
	if reflect.DeepEqual(before, next) {
		return
	}
	if err := hostfile.WriteJSON(x.file(), next, 0o600, hostfile.Durable); err != nil {
		x.Log.WarnContext(ctx, "rejected pods not saved", "err", err)
	}
	x.now.Store(&next)
	x.changed.Notify()
	if e := rejectsEvent(&before, &next); e.Reason != "" {
		x.Log.InfoContext(ctx, "event on the Node", "reason", e.Reason, "message", e.Message)
		x.API.Record(e)
	}
}

// read returns what the pods with heddle's devices show.
func (x *rejects) read(pods []*corev1.Pod, r *publish.Round) (all []breaker.Pod) {
	claimed := map[string]bool{}
	for _, b := range x.state.View().Allocations() {
		claimed[b.UID] = claimed[b.UID] || b.Claim != ""
	}
	for _, p := range pods {
		if seen, has := breaker.Read(p, r.Wanted, claimed[string(p.UID)]); has {
			all = append(all, seen)
		}
	}
	return all
}

// withdraw asks the fleet. The entry lasts for the wait, and as long for the probe.
func (x *rejects) withdraw(ctx context.Context, s breaker.State, now time.Time, r *publish.Round) breaker.State {
	ctx, cancel := context.WithTimeout(ctx, 5*askTimeout)
	defer cancel()
	c := r.Inventory.Config
	wait := s.Withdraw(now, "").Until(c.Health.ProbeAfter).Sub(now)
	full, err := x.API.Withdraw(ctx, x.Withdrawn, c.Domains.Product(), c.Health.MaxWithdrawnPercent, now.Add(2*wait))
	if err != nil {
		full = fmt.Sprintf("ConfigMap %s: %v", x.Withdrawn, err)
	}
	return s.Withdraw(now, full)
}

// rejectsEvent returns the Event of a change, without a reason for none: of a node that is withdrawn, whatever its
// probes show; that stays in service; that is well again.
func rejectsEvent(before, next *breaker.State) (e health.NodeEvent) {
	switch {
	case next.Tries == 0 && before.Tries > 0:
		e.Reason, e.Message = wellknown.EventReturned, "a pod with devices has started: the node is in service"
	case next.Kept != "" && before.Kept == "":
		e.Warning, e.Reason = true, wellknown.EventNotWithdrawn
		e.Message = "the node stays in service: " + next.Kept + ". " + next.String()
	case next.Phase == breaker.Withdrawn && (before.Tries == 0 || before.Kept != ""):
		e.Warning, e.Reason = true, wellknown.EventWithdrawn
		e.Message = "all devices are withdrawn, and the Node has the taint " + wellknown.RejectsPods + ": " + next.String()
	}
	return e
}
