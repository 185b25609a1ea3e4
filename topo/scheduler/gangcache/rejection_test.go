package gangcache

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestRejection goes through the life of a rejection: what is shown, and whether the
// members are to get it.
func TestRejection(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	type seen struct {
		Reason       string
		First, Share bool
	}
	var r rejection
	try := func(after time.Duration, reason string) seen {
		now := start.Add(after)
		first := r.record(reason, now)
		return seen{r.reason, first, r.share(now)}
	}
	var got []seen
	got = append(got,
		try(0, "3 of 5 fit, group leaf-1 is short"),
		// Of the same kind: it stands for a minute.
		try(time.Second, "4 of 5 fit, group leaf-2 is short"),
		try(61*time.Second, "4 of 5 fit, group leaf-2 is short"),
		// Of another kind: at once here, and for all members a minute after the last.
		try(62*time.Second, "no node has room"),
	)
	r.accept()
	if r.reason != "" || r.leader != nil || !r.since.Equal(start) {
		t.Errorf("an accepted gang has the reason %q, the leader %v, and is rejected since %v", r.reason, r.leader, r.since)
	}
	got = append(got, try(63*time.Second, "3 of 5 fit"), try(64*time.Second, "no node has room"))
	want := []seen{
		{Reason: "3 of 5 fit, group leaf-1 is short", First: true},
		{Reason: "3 of 5 fit, group leaf-1 is short"},
		{Reason: "4 of 5 fit, group leaf-2 is short"},
		{Reason: "no node has room", Share: true},
		{Reason: "3 of 5 fit", First: true},
		{Reason: "no node has room"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !r.since.Equal(start) {
		t.Errorf("rejected since %v, want %v: its members have had no nodes in between", r.since, start)
	}
}
