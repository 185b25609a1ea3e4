package health

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestShortages(t *testing.T) {
	bad := func(cause Cause, reason string) State { return State{Cause: cause, Reason: reason} }
	devices := map[string]State{
		"GPU 0": {Healthy: true},
		"GPU 1": bad(Lost, "the driver has lost it"),
		"GPU 2": bad("XID", "XID 79"),
		"GPU 3": bad("XID", "XID 119"),
	}
	want := []Shortage{
		{"nvidia.com/gpu", Lost, 1, "GPU 1: the driver has lost it"},
		{"nvidia.com/gpu", "XID", 2, "GPU 2: XID 79; GPU 3: XID 119"},
	}
	if diff := cmp.Diff(want, Shortages("nvidia.com/gpu", devices)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := map[string]State{}
	for i := range 6 {
		many[fmt.Sprintf("mlx5_%d", i)] = bad(PortDown, "port 1 is DOWN (Polling)")
	}
	want = []Shortage{{"rdma/a", PortDown, 6, "mlx5_0, mlx5_1, mlx5_2, mlx5_3 and 2 more: port 1 is DOWN (Polling)"}}
	if diff := cmp.Diff(want, Shortages("rdma/a", many)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Shortages("rdma/a", map[string]State{"mlx5_0": {Healthy: true}}); got != nil {
		t.Errorf("healthy devices are short: %v", got)
	}
}

func TestConditionOf(t *testing.T) {
	gpu := Shortage{"nvidia.com/gpu", "XID", 1, "GPU 2: XID 79"}
	hca := Shortage{"rdma/a", PortDown, 2, "mlx5_0, mlx5_1: port 1 is DOWN"}
	none := Shortage{"rdma/b", "NoMatch", 0, "no HCA is selected: linkTypes has ether, the HCAs have infiniband"}
	for _, tt := range []struct {
		name      string
		shortages []Shortage
		want      Condition
	}{
		{"nothing is short", nil, Condition{Type: "HeddleReady", True: true, Reason: "AllDevicesReady", Message: "every device of every resource is healthy"}},
		{"one cause", []Shortage{gpu}, Condition{Type: "HeddleReady", Reason: "XID", Message: "nvidia.com/gpu: 1 unavailable: GPU 2: XID 79"}},
		{"several, in any order", []Shortage{none, hca, gpu}, Condition{
			Type: "HeddleReady", Reason: "SeveralCauses", Message: "nvidia.com/gpu: 1 unavailable: GPU 2: XID 79. rdma/a: 2 unavailable: mlx5_0, mlx5_1: port 1 is DOWN. " +
				"rdma/b: no HCA is selected: linkTypes has ether, the HCAs have infiniband",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, ConditionOf(tt.shortages)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for i := range 4 {
		long := ConditionOf([]Shortage{{"r", "XID", 0, strings.Repeat("x", i) + strings.Repeat("ü", 2000)}})
		if len(long.Message) > maxMessage || len(long.Message) < maxMessage-8 || !utf8.ValidString(long.Message) {
			t.Errorf("a long message has %d bytes, valid UTF-8: %v", len(long.Message), utf8.ValidString(long.Message))
		}
	}
}
