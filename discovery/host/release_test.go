package host

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// driver is a library with a session that can be seen.
type driver struct {
	gpus
	mu   sync.Mutex
	open bool
	// opened counts the sessions, busy keeps one from being ended.
	opened int
	busy   bool
}

func (d *driver) Open() (machine.Driver, int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.open {
		d.opened++
	}
	d.open = true
	return d.gpus.Open()
}

func (d *driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy {
		return gpu.ErrBusy
	}
	d.open = false
	return nil
}

// session reports whether one is open, and how many there were.
func (d *driver) session() (open bool, opened int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open, d.opened
}

// releasable is a host that holds its session.
func releasable(t *testing.T) (*Host, *driver) {
	t.Helper()
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	d := &driver{gpus: gpus{count: 8}}
	return New(Options{
		SysfsRoot: tree.Sys(), DevRoot: tree.Dev(), ProcRoot: tree.Proc(), GPUs: from(d), Hold: true, Release: NewRelease(),
	}), d
}

func TestReleaseEndsTheSessionAndKeepsTheGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, d := releasable(t)
		r := h.options.Release
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.loop(ctx, nil) }()
		synctest.Wait()
		if h.Machine() != nil {
			t.Error("scanned before it was known whether the driver is released")
		}
		r.Set(time.Time{})
		synctest.Wait()
		before := h.Machine().GPUs
		if open, _ := d.session(); !open || len(before) != 8 {
			t.Fatalf("without a release the session is open: %t, %d GPUs", open, len(before))
		}

		r.Set(time.Now().Add(10 * time.Minute))
		synctest.Wait()
		open, opened := d.session()
		if closed, err := r.Closed(); open || !closed || err != nil {
			t.Errorf("released: open %t, closed %t, %v", open, closed, err)
		}
		<-r.ClosedChanged()
		<-time.After(9 * time.Minute) // Eighteen scans, by the clock of the bubble.
		synctest.Wait()
		if now, again := d.session(); now || again != opened {
			t.Error("a scan opened a session under the release")
		}
		m := h.Machine()
		if diff := cmp.Diff(before, m.GPUs); diff != "" || m.Driver.Version == "" {
			t.Errorf("driver %+v; GPUs (-before +released):\n%s", m.Driver, diff)
		}
		if err := m.Validate(); err != nil {
			t.Error(err)
		}

		<-r.ClosedChanged() // By itself, at its end.
		synctest.Wait()
		closed, _ := r.Closed()
		if open, _ := d.session(); !open || closed || r.Active() {
			t.Errorf("after its end: open %t, closed %t, active %t", open, closed, r.Active())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestReleaseWaitsForACallThatHasNotReturned(t *testing.T) {
	h, d := releasable(t)
	r := h.options.Release
	h.Scan(t.Context())
	d.busy = true
	r.Set(time.Now().Add(time.Hour))
	h.Scan(t.Context())
	if closed, err := r.Closed(); closed || !errors.Is(err, gpu.ErrBusy) {
		t.Errorf("closed %t, %v", closed, err)
	}
	d.busy = false
	h.Scan(t.Context())
	if closed, err := r.Closed(); !closed || err != nil {
		t.Errorf("closed %t, %v", closed, err)
	}
}

// A process that starts under a release knows the GPUs of the one before it, or
// none.
func TestStartUnderARelease(t *testing.T) {
	known, _ := releasable(t)
	before := known.Scan(t.Context())
	for _, from := range []*machine.Machine{before, nil} {
		h, d := releasable(t)
		h.options.Before = from
		h.options.Release.Set(time.Now().Add(time.Hour))
		m := h.Scan(t.Context())
		want := 0
		if from != nil {
			want = len(from.GPUs)
		}
		if _, opened := d.session(); opened > 0 || len(m.GPUs) != want || len(m.HCAs) != len(before.HCAs) {
			t.Errorf("%d sessions, %d GPUs, %d HCAs", opened, len(m.GPUs), len(m.HCAs))
		}
	}
}
