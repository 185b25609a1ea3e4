package bounded

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

// A call that hangs costs its time once; later ones are rejected at once, and no
// second one hangs. What it brings in the end is thrown away.
func TestAtMostOneCallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var begun atomic.Int32
		hang := func() (string, error) { begun.Add(1); <-release; return "late", nil }
		var r Reading[string]
		if got, err := r.Read(t.Context(), time.Second, func() (string, error) { return "good", nil }); got != "good" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		for i, want := range []time.Duration{time.Second, 0, 0} {
			began := time.Now()
			got, err := r.Read(t.Context(), time.Second, hang)
			if took := time.Since(began); got != "good" || !errors.Is(err, ErrTimeout) || took != want {
				t.Errorf("read %d: %q, %v after %s, want the last good value after %s", i, got, err, took, want)
			}
		}
		if n := begun.Load(); n != 1 || !r.call.Busy() {
			t.Errorf("%d calls hang, want 1; busy %t", n, r.call.Busy())
		}
		close(release)
		synctest.Wait()
		if got, err := r.Read(t.Context(), time.Second, func() (string, error) { return "new", nil }); got != "new" || err != nil {
			t.Errorf("%q, %v, want what is new", got, err)
		}
		if r.call.Busy() {
			t.Error("busy after an answer")
		}
	})
}

func TestFailure(t *testing.T) {
	broken := errors.New("broken")
	var r Reading[string]
	fail := func() (string, error) { return "part", broken }
	if got, err := r.Read(t.Context(), time.Hour, fail); got != "part" || !errors.Is(err, broken) {
		t.Errorf("without a good value: %q, %v", got, err)
	}
	if _, ok := r.Last(); ok {
		t.Error("a failure is a last good value")
	}
	if _, err := r.Read(t.Context(), time.Hour, func() (string, error) { return "good", nil }); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Read(t.Context(), time.Hour, fail); got != "good" || !errors.Is(err, broken) {
		t.Errorf("after a good value: %q, %v", got, err)
	}
}

// Calls that wait together cost the time of one, and an answer counts although
// the one before it used the time up.
func TestWaitTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		calls := make([]Call[int], 3)
		waits := make([]func(context.Context) (int, error), len(calls))
		for i := range calls {
			waits[i] = calls[i].Start(func() (int, error) {
				if i != 2 {
					<-release
				}
				return i, nil
			})
		}
		for i, wait := range waits {
			if n, err := wait(ctx); (err == nil) != (i == 2) || (err == nil && n != i) {
				t.Errorf("call %d: %d, %v", i, n, err)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestProbe(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want machine.Probe
	}{
		{nil, machine.Probe{Name: "cpu", State: machine.ProbeOK}},
		{ErrTimeout, machine.Probe{Name: "cpu", State: machine.ProbeTimeout, Reason: "did not answer in 10s"}},
		{errors.New("x"), machine.Probe{Name: "cpu", State: machine.ProbeFailed, Reason: "x"}},
	} {
		if diff := cmp.Diff(tt.want, Probe("cpu", DefaultTimeout, tt.err)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.err, diff)
		}
	}
}
