package binder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// collectEvery is how often what is left of gone pods is looked for.
	collectEvery = 30 * time.Second
	// goneFor is how long a record must have been without a pod before it
	// goes: a kubelet that has just started may not know all its pods yet.
	goneFor = 30 * time.Second
	// unclaimedFor is how long a name may be without a holder: Allocate has
	// answered and the kubelet has not written its checkpoint yet.
	unclaimedFor = time.Minute
)

func (b *Binder) recordDir() string { return filepath.Join(b.options.StateDir, recordDir) }

// keep remembers a new record, in a file first. Nobody collects meanwhile: to a
// clock that has just been set, what is being written looks left over.
func (b *Binder) keep(r *record) error {
	b.files.RLock()
	defer b.files.RUnlock()
	err := b.save(r)
	if err != nil {
		err = fmt.Errorf("record of %s: %w", r.name(), err)
	}
	b.note(faultState, err)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records[r.Device] = r
	return nil
}

func (b *Binder) save(r *record) error {
	content, err := json.Marshal(r)
	if err == nil {
		err = put(b.recordDir(), r.Device+jsonEnd, append(content, '\n'))
	}
	if err == nil {
		b.settler.add(r.Device + jsonEnd)
	}
	return err
}

// Wake says that a kubelet has just registered us; Run then looks whether it
// has lost devices. It returns at once.
func (b *Binder) Wake() {
	b.mu.Lock()
	b.unsure, b.woken = true, b.options.Now()
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// startsWithin is how much earlier a kubelet can make the second of its sockets
// than the first. It may take half a minute longer where many containers run.
const startsWithin = 2 * time.Second

// noteStart notices that a kubelet starts or has started, before it registers
// us: it answers already and does not know its pods yet.
func (b *Binder) noteStart() {
	var made [2]time.Time
	for i, path := range b.options.Sockets {
		if path == "" {
			return
		}
		if info, err := os.Stat(path); err == nil {
			made[i] = info.ModTime()
		}
	}
	latest := made[0]
	switch {
	case made[0].Sub(made[1]) > startsWithin:
		latest = b.options.Now()
	case made[1].After(made[0]):
		latest = made[1]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if latest.After(b.woken) {
		b.woken = latest
	}
}

// Run removes what is left of gone pods, until ctx ends.
func (b *Binder) Run(ctx context.Context) error {
	defer b.lister.wait()
	defer b.settler.wait()
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := b.Collect(ctx); err != nil && ctx.Err() == nil {
			b.options.Log.Warn("cannot clean up after gone pods", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-b.wake:
			b.searchLost(ctx)
		}
	}
}

// Collect looks once for records, specs and files whose pod has gone, and
// removes those that have been without one for long enough. If one of the
// kubelet's accounts cannot be read, nothing is removed: a spec lives as long
// as its pod, also while the kubelet does not call us.
func (b *Binder) Collect(ctx context.Context) error {
	b.note(faultCDI, b.checkCDI())
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	now, err := b.look(ctx)
	if err != nil {
		return err
	}
	if now.checkpointErr != nil {
		return now.checkpointErr
	}
	b.tellLost(ctx, now)
	live := liveNames(now)
	b.files.Lock() // Nobody publishes while files go.
	defer b.files.Unlock()
	expired := b.expire(now, live)
	var errs []error
	for _, r := range expired {
		// The record goes last: if something stays, the next run finds it.
		if err := errors.Join(
			remove(b.options.CDIDir, specFile(r)),
			remove(filepath.Join(b.options.StateDir, deviceDir), r.Device+jsonEnd),
		); err != nil {
			errs = append(errs, err)
			continue
		}
		if err := remove(b.recordDir(), r.Device+jsonEnd); err != nil {
			errs = append(errs, err)
			continue
		}
		b.mu.Lock()
		delete(b.records, r.Device)
		delete(b.gone, r.Device)
		b.mu.Unlock()
	}
	errs = append(errs, b.sweep(live))
	if len(expired) > 0 {
		b.signal()
	}
	return errors.Join(errs...)
}

// checkCDI tells what would keep a spec from being written. A missing
// directory would be made.
func (b *Binder) checkCDI() error {
	err := unix.Access(b.options.CDIDir, unix.W_OK)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("CDI directory %s: %w", b.options.CDIDir, err)
	}
	return nil
}

// liveNames are the devices that a container holds by the kubelet's accounts.
func liveNames(now *account) map[string]bool {
	live := make(map[string]bool)
	for i := range now.holdings {
		for _, name := range now.holdings[i].names {
			if _, device, ok := parseName(name); ok {
				live[device] = true
			}
		}
	}
	return live
}

// expire marks the records without a pod and returns those that have been
// without one for long enough.
func (b *Binder) expire(now *account, live map[string]bool) []*record {
	b.mu.Lock()
	defer b.mu.Unlock()
	var expired []*record
	for device, r := range b.records {
		stale := r.Kind == kindSGPU && b.staleLocked(r, now)
		if live[device] && !stale || r.decided > now.at || b.claimed(r, now) {
			delete(b.gone, device)
			continue
		}
		since, known := b.gone[device]
		if !known {
			since = b.options.Now()
			b.gone[device] = since
		}
		// What the checkpoint names has its files, and no cards any more.
		if b.options.Now().Sub(since) >= goneFor && !live[device] {
			expired = append(expired, r)
		}
	}
	return expired
}

// claimed tells whether the record's pod is there, or may be yet.
func (b *Binder) claimed(r *record, now *account) bool {
	if r.Owner == nil && b.options.Now().Sub(r.Created) < unclaimedFor {
		return true
	}
	for i := range now.holdings {
		h := &now.holdings[i]
		if !h.known && h.resource == r.Resource && slices.Equal(h.ids, r.IDs) &&
			(r.Owner == nil || r.Owner.same(h.Pod)) {
			return true
		}
	}
	return r.Owner != nil && now.active(r.Owner.Pod)
}

// active tells whether PodResources lists this pod, and not another one of its
// name.
func (a *account) active(p Pod) bool {
	if p.Name == "" {
		return false
	}
	for _, listed := range a.pods {
		if listed.GetNamespace() != p.Namespace || listed.GetName() != p.Name {
			continue
		}
		for i := range a.holdings {
			h := &a.holdings[i]
			if h.Namespace == p.Namespace && h.Name == p.Name && !h.same(p) {
				return false
			}
		}
		return true
	}
	return false
}

// sweep removes files that no record has: of writes that were cut off, and of
// records that were set aside and whose container has gone.
func (b *Binder) sweep(live map[string]bool) error {
	var errs []error
	old := b.options.Now().Add(-unclaimedFor)
	devices := filepath.Join(b.options.StateDir, deviceDir)
	for _, dir := range []string{b.options.CDIDir, b.recordDir(), devices} {
		names, err := filesIn(dir, tempStart, tempEnd)
		errs = append(errs, err)
		for _, name := range names {
			if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.ModTime().Before(old) {
				errs = append(errs, remove(dir, name))
			}
		}
	}
	type family struct{ dir, start, end string }
	families := []family{{devices, "", jsonEnd}, {b.recordDir(), "", jsonEnd + corruptEnd}}
	for _, kind := range kinds() {
		families = append(families, family{b.options.CDIDir, specStart + kind + "-", jsonEnd})
	}
	for _, f := range families {
		names, err := filesIn(f.dir, f.start, f.end)
		errs = append(errs, err)
		for _, name := range names {
			device := strings.TrimSuffix(strings.TrimPrefix(name, f.start), f.end)
			b.mu.Lock()
			_, recorded := b.records[device]
			b.mu.Unlock()
			// Only names that we can have given: the directories are not ours alone.
			if recorded || live[device] || !isDevice(device) {
				continue
			}
			errs = append(errs, remove(f.dir, name))
		}
	}
	return errors.Join(errs...)
}
