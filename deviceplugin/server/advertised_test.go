package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// shown is the list as "ID health".
func (l *advertised) shown() []string {
	list := []string{}
	for _, d := range l.current().devices {
		health := "-"
		if d.Healthy {
			health = "+"
		}
		list = append(list, d.ID+health)
	}
	return list
}

func healthy(ids ...string) []Device {
	devices := make([]Device, len(ids))
	for i, id := range ids {
		devices[i] = Device{ID: id, Healthy: true}
	}
	return devices
}

// One story for each thing that keeps an ID in the list: "b" is named first
// and then not, and the list is as wanted from then on, at each look.
func TestAnIDOnceAdvertisedStaysListed(t *testing.T) {
	const look = 5 * time.Second
	tests := []struct {
		name string
		// begin runs before b is withdrawn; at, before the check at that time.
		begin func(l *advertised)
		at    map[time.Duration]func(l *advertised)
		// holds reports whether a pod holds b at the time.
		holds func(time.Duration) bool
		// until is when b leaves the list, 0 for never within an hour.
		until time.Duration
	}{
		{
			name:  "no pod has it: the kubelet gets a minute",
			until: time.Minute,
		},
		{
			name:  "a pod holds it for half an hour",
			holds: func(d time.Duration) bool { return d < 30*time.Minute },
			until: 30 * time.Minute,
		},
		{
			name:  "an Allocate of ten minutes is in flight",
			begin: func(l *advertised) { _ = l.begin("r", []string{"b"}) },
			at:    map[time.Duration]func(*advertised){10 * time.Minute: func(l *advertised) { l.end([]string{"b"}) }},
			// The kubelet books after our answer: another minute.
			until: 11 * time.Minute,
		},
		{
			name:  "a stream hangs for five minutes, and does not learn of it",
			begin: func(l *advertised) { l.sent(l.join(), l.current().generation) },
			at: map[time.Duration]func(*advertised){
				5 * time.Minute: func(l *advertised) { l.sent(1, l.current().generation) },
			},
			until: 6*time.Minute - look,
		},
		{
			name:  "the stream that hung is gone",
			begin: func(l *advertised) { l.join() },
			at:    map[time.Duration]func(*advertised){5 * time.Minute: func(l *advertised) { l.leave(1) }},
			until: 6*time.Minute - look,
		},
		{
			name: "the Resource names it again",
			at: map[time.Duration]func(*advertised){
				30 * time.Second: func(l *advertised) { l.update(append(healthy("a"), Device{ID: "b"})) },
			},
		},
		{
			name:  "held for ever",
			holds: func(time.Duration) bool { return true },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newAdvertised()
				l.update(healthy("a", "b"))
				if tt.begin != nil {
					tt.begin(l)
				}
				l.update(healthy("a"))
				start := time.Now()
				for range 720 {
					d := time.Since(start)
					if act := tt.at[d]; act != nil {
						act(l)
					}
					l.held(map[string]bool{"b": tt.holds != nil && tt.holds(d)}, time.Now())
					want := []string{"a+", "b-"}
					if tt.until > 0 && d >= tt.until {
						want = []string{"a+"}
					}
					if diff := cmp.Diff(want, l.shown()); diff != "" {
						t.Fatalf("list after %v (-want +got):\n%s", d, diff)
					}
					<-time.After(look)
				}
			})
		})
	}
}

func TestADeviceThatWasUnhealthyLeavesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newAdvertised()
		l.update([]Device{{ID: "a"}})
		stream := l.join()
		l.sent(stream, l.current().generation)
		// The list does not change, so no stream will ever send another.
		if l.update(nil) {
			t.Error("withdrawing an unhealthy device changed the list")
		}
		<-time.After(linger)
		l.held(nil, time.Now())
		if diff := cmp.Diff([]string{}, l.shown()); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}

// After a restart of the plugin, pods hold what the Resource may not name.
func TestHeldIDsThatNobodyNamesAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newAdvertised()
		l.update(healthy("a"))
		l.held(map[string]bool{"a": true, "z": true}, time.Now())
		if diff := cmp.Diff([]string{"a+", "z-"}, l.shown()); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		if err := l.begin("r", []string{"z"}); err != nil {
			t.Errorf("a listed ID is rejected: %v", err)
		}
		l.end([]string{"z"})
		<-time.After(linger)
		l.held(map[string]bool{"a": true}, time.Now())
		if diff := cmp.Diff([]string{"a+"}, l.shown()); diff != "" {
			t.Errorf("list without holder (-want +got):\n%s", diff)
		}
	})
}

// A look that began before the call ended must not free what the call gave.
func TestAnOldLookFreesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newAdvertised()
		l.update(healthy("a"))
		l.update(nil)
		<-time.After(time.Hour)
		asked := time.Now()
		<-time.After(time.Second)
		if err := l.begin("r", []string{"a"}); err != nil {
			t.Fatal(err)
		}
		l.end([]string{"a"})
		l.held(nil, asked)
		if diff := cmp.Diff([]string{"a-"}, l.shown()); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}

func TestNUMANodes(t *testing.T) {
	list := listOf([]Device{
		{ID: "a", NUMA: []int64{0}}, {ID: "b", NUMA: []int64{0}}, {ID: "c", NUMA: []int64{1}}, {ID: "d"},
	}).GetDevices()
	var nodes [][]int64
	for _, d := range list {
		var of []int64
		for _, n := range d.GetTopology().GetNodes() {
			of = append(of, n.GetID())
		}
		nodes = append(nodes, of)
	}
	if diff := cmp.Diff([][]int64{{0}, {0}, {1}, nil}, nodes); diff != "" {
		t.Errorf("NUMA nodes (-want +got):\n%s", diff)
	}
}

// A withdrawn device keeps its NUMA nodes beside others, and has none once the resource has no device.
func TestNUMANodesOfWithdrawnDevices(t *testing.T) {
	l := newAdvertised()
	l.update([]Device{{ID: "a", Healthy: true, NUMA: []int64{0}}, {ID: "b", Healthy: true, NUMA: []int64{1}}})
	l.update([]Device{{ID: "a", Healthy: true, NUMA: []int64{0}}})
	if diff := cmp.Diff([]Device{{ID: "a", Healthy: true, NUMA: []int64{0}}, {ID: "b", NUMA: []int64{1}}}, l.current().devices); diff != "" {
		t.Errorf("one is withdrawn (-want +got):\n%s", diff)
	}
	if l.update(nil); !cmp.Equal([]Device{{ID: "a"}, {ID: "b"}}, l.current().devices) {
		t.Errorf("all are withdrawn: %+v", l.current().devices)
	}
}
