package queue

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func at(d time.Duration) time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(d) }

func TestOrder(t *testing.T) {
	gangs := []Gang{
		{Name: "young", Created: at(time.Hour)},
		{Name: "b", Created: at(0)},
		{Name: "a", Created: at(0)},
		{Name: "urgent", Priority: 9, Created: at(2 * time.Hour)},
	}
	slices.SortFunc(gangs, func(a, b Gang) int { return a.Compare(&b) })
	var names []string
	for i := range gangs {
		names = append(names, gangs[i].Name)
	}
	if diff := cmp.Diff([]string{"urgent", "a", "b", "young"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDue(t *testing.T) {
	const after = 10 * time.Minute
	now := at(time.Hour)
	long, short := at(time.Minute), now.Add(-after+1)
	for _, tt := range []struct {
		name  string
		after time.Duration
		gangs []Gang
		want  []int
	}{
		{"the oldest that has waited", after, []Gang{
			{Created: at(3), Rejected: long}, {Created: at(2), Rejected: long}, {Created: at(1), Rejected: short}, {Created: at(0)},
		}, []int{1}},
		{"one of each priority", after, []Gang{{Rejected: long}, {Priority: 5, Rejected: long}, {Priority: 5, Rejected: long}}, []int{1, 0}},
		{"another has one", after, []Gang{{Created: at(0), Rejected: long}, {Created: at(1), Rejected: long, Start: at(2 * time.Hour)}}, nil},
		{"its start has passed", after, []Gang{{Rejected: long}, {Rejected: long, Start: at(time.Minute)}}, []int{1}},
		{"at most four", after, []Gang{
			{Priority: 1, Rejected: long},
			{Priority: 2, Rejected: long},
			{Priority: 3, Rejected: long},
			{Priority: 4, Rejected: long},
			{Priority: 5, Rejected: long},
		}, []int{4, 3, 2, 1}},
		{"never", 0, []Gang{{Rejected: long}}, nil},
	} {
		if diff := cmp.Diff(tt.want, Due(tt.gangs, tt.after, now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestEnd(t *testing.T) {
	now := at(10 * time.Hour)
	for _, tt := range []struct {
		name            string
		began, duration time.Duration
		want            time.Duration
	}{
		{"stated", 9 * time.Hour, 3 * time.Hour, 12 * time.Hour},
		{"not stated", 4 * time.Hour, 0, 16 * time.Hour},
		{"stated, and wrong", 4 * time.Hour, time.Hour, 16 * time.Hour},
		{"young", 10*time.Hour - time.Second, 0, 11 * time.Hour},
	} {
		if got := End(at(tt.began), tt.duration, now); !got.Equal(at(tt.want)) {
			t.Errorf("%s: %s, want %s", tt.name, got, at(tt.want))
		}
	}
}

func TestSoonest(t *testing.T) {
	ends := []time.Time{at(5 * time.Hour), at(2*time.Hour + time.Second), at(-time.Hour), at(3 * time.Hour)}
	from := func(d time.Duration) func(time.Time) bool {
		return func(t time.Time) bool { return !t.Before(at(d)) }
	}
	for _, tt := range []struct {
		name string
		room func(time.Time) bool
		want time.Duration
		ok   bool
	}{
		{"at once", from(0), time.Minute, true},
		{"when one has ended", from(2*time.Hour + time.Second), 2*time.Hour + time.Minute, true},
		{"when all have", from(4 * time.Hour), 5 * time.Hour, true},
		{"never", func(time.Time) bool { return false }, 0, false},
	} {
		start, ok := Soonest(ends, at(0), tt.room)
		if ok != tt.ok || ok && !start.Equal(at(tt.want)) {
			t.Errorf("%s: %s, %t; want %s", tt.name, start, ok, at(tt.want))
		}
	}
	if !Binds(at(time.Hour), time.Time{}) || !Binds(at(time.Hour), at(2*time.Hour)) || Binds(at(time.Hour), at(time.Hour)) {
		t.Error("a reservation binds what ends later, or at an unknown time, and nothing else")
	}
	if Charge(8, 6) != 2 || Charge(8, 9) != 0 {
		t.Error("a reservation takes what is not about to be free")
	}
}
