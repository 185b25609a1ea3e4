package plugin_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/deviceplugin/plugin"
)

func TestList(t *testing.T) {
	l := plugin.NewList()
	if got := l.Devices(); len(got) != 0 {
		t.Errorf("before the first offer: %v", got)
	}
	a, b := plugin.Device{ID: "a", Healthy: true, NUMA: []int64{0}}, plugin.Device{ID: "b", Healthy: true}
	for _, tt := range []struct {
		name    string
		offer   []plugin.Device
		want    []plugin.Device
		differs bool
	}{
		{"none again", nil, nil, false},
		{"two, unsorted", []plugin.Device{b, a}, []plugin.Device{a, b}, true},
		{"the same in another order", []plugin.Device{a, b}, []plugin.Device{a, b}, false},
		{"one is sick", []plugin.Device{a, {ID: "b"}}, []plugin.Device{a, {ID: "b"}}, true},
		{"elsewhere", []plugin.Device{{ID: "a", Healthy: true, NUMA: []int64{1}}, {ID: "b"}}, []plugin.Device{{ID: "a", Healthy: true, NUMA: []int64{1}}, {ID: "b"}}, true},
		{"one is gone", []plugin.Device{a}, []plugin.Device{a}, true},
	} {
		told := false
		if differs := l.Offer(tt.offer); differs != tt.differs {
			t.Errorf("%s: differs %v", tt.name, differs)
		}
		select {
		case <-l.Changed():
			told = true
		default:
		}
		if diff := cmp.Diff(tt.want, l.Devices()); diff != "" || told != tt.differs {
			t.Errorf("%s: told %v (-want +got):\n%s", tt.name, told, diff)
		}
	}
	l.Offer(nil)
	l.Offer([]plugin.Device{b})
	<-l.Changed()
	select {
	case <-l.Changed():
		t.Error("signals that nobody took did not become one")
	default:
	}
}
