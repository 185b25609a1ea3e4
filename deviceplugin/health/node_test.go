package health

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
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
		if len(long.Message) > MaxMessage || len(long.Message) < MaxMessage-8 || !utf8.ValidString(long.Message) {
			t.Errorf("a long message has %d bytes, valid UTF-8: %v", len(long.Message), utf8.ValidString(long.Message))
		}
	}
}

func TestRemedyOf(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	well := func(ago time.Duration) State { return State{Healthy: true, Since: at.Add(-ago)} }
	ill := func(ago time.Duration) State {
		return State{Cause: Lost, Reason: "it is lost", Since: at.Add(-ago)}
	}
	const long, short = 3 * time.Minute, time.Minute
	for _, tt := range []struct {
		name     string
		policy   config.RemediationPolicy
		a, b     State
		cordoned bool
		want     Remedy
	}{
		{"all healthy", config.RemediationDrain, well(long), well(long), false, Remedy{}},
		{"just ill", config.RemediationDrain, ill(short), well(long), false, Remedy{Message: "GPU a: it is lost"}},
		{"ill", config.RemediationDrain, ill(long), well(long), false, Remedy{true, []string{"a"}, "GPU a: it is lost"}},
		{"exactly long enough", config.RemediationCordon, well(long), ill(2 * time.Minute), false, Remedy{true, []string{"b"}, "GPU b: it is lost"}},
		{
			"a second one is drained after its own time", config.RemediationDrain, ill(long), ill(short), true,
			Remedy{true, []string{"a"}, "GPU a, GPU b: it is lost"},
		},
		{"both", config.RemediationDrain, ill(long), ill(long), true, Remedy{true, []string{"a", "b"}, "GPU a, GPU b: it is lost"}},
		{"just healthy again", config.RemediationCordon, well(short), well(long), true, Remedy{Cordon: true}},
		{"healthy again", config.RemediationCordon, well(long), well(long), true, Remedy{}},
		{"a restart with an ill GPU", config.RemediationDrain, ill(0), well(0), true, Remedy{Cordon: true, Message: "GPU a: it is lost"}},
		{"a restart with healthy ones", config.RemediationDrain, well(0), well(0), true, Remedy{Cordon: true}},
		{"turned off", config.RemediationNone, ill(long), well(long), true, Remedy{Message: "GPU a: it is lost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.a.Name, tt.b.Name = "GPU a", "GPU b"
			s := &Snapshot{GPUs: map[string]State{"a": tt.a, "b": tt.b}}
			got := RemedyOf(config.Remediation{Policy: tt.policy, After: 2 * time.Minute}, s, tt.cordoned, at)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
