package server_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/server"
)

func TestList(t *testing.T) {
	l := server.NewList()
	if got := l.Devices(); len(got) != 0 {
		t.Errorf("before the first offer: %v", got)
	}
	a, b := server.Device{ID: "a", Healthy: true, NUMA: []int64{0}}, server.Device{ID: "b", Healthy: true}
	for _, tt := range []struct {
		name    string
		offer   []server.Device
		want    []server.Device
		differs bool
	}{
		{"none again", nil, nil, false},
		{"two, unsorted", []server.Device{b, a}, []server.Device{a, b}, true},
		{"the same in another order", []server.Device{a, b}, []server.Device{a, b}, false},
		{"one is sick", []server.Device{a, {ID: "b"}}, []server.Device{a, {ID: "b"}}, true},
		{"elsewhere", []server.Device{{ID: "a", Healthy: true, NUMA: []int64{1}}, {ID: "b"}}, []server.Device{{ID: "a", Healthy: true, NUMA: []int64{1}}, {ID: "b"}}, true},
		{"one is gone", []server.Device{a}, []server.Device{a}, true},
	} {
		changed := false
		if differs := l.Offer(tt.offer); differs != tt.differs {
			t.Errorf("%s: differs %v", tt.name, differs)
		}
		select {
		case <-l.Changed():
			changed = true
		default:
		}
		if diff := cmp.Diff(tt.want, l.Devices()); diff != "" || changed != tt.differs {
			t.Errorf("%s: changed %v (-want +got):\n%s", tt.name, changed, diff)
		}
	}
	l.Offer(nil)
	l.Offer([]server.Device{b})
	<-l.Changed()
	select {
	case <-l.Changed():
		t.Error("signals that were not received did not become one")
	default:
	}
}
