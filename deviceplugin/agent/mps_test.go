package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/sharing/enforce"
)

// The agent reports each failure of a daemon once, and never floods the Node with Events.
func TestMPSWatch(t *testing.T) {
	const a, b = "GPU-a", "GPU-b"
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	starting := func(uuid string) enforce.Daemon {
		return enforce.Daemon{GPU: uuid, State: enforce.Starting, Since: start}
	}
	runs := func(uuid string, since, restarts int, fault string) enforce.Daemon {
		return enforce.Daemon{GPU: uuid, State: enforce.Running, Since: at(since), Restarts: restarts, LastError: fault, LastRunning: at(since)}
	}
	broken := func(uuid string, restarts int, reason string) enforce.Daemon {
		return enforce.Daemon{GPU: uuid, State: enforce.Broken, Since: at(1), Restarts: restarts, Reason: reason, LastError: reason}
	}
	died := func(uuid string, restarts int, reason string) enforce.Daemon {
		d := broken(uuid, restarts, reason)
		d.LastRunning = at(1)
		return d
	}
	stubborn := runs(a, 0, 0, "")
	stubborn.Reason = "set_default_device_pinned_mem_limit: not supported"
	type look struct {
		at   int
		all  []enforce.Daemon
		want []string
	}
	failed := func(uuid, why string) string {
		return "the MPS daemon of GPU 0 (" + uuid + ") failed and is started again; " +
			"CUDA programs that used it must be started again too: " + why
	}
	startless := func(uuid, why string) string {
		return "the MPS daemon of GPU 0 (" + uuid + ") does not start, and containers that need it wait: " + why
	}
	for _, tt := range []struct {
		name  string
		looks []look
	}{
		{"all is well", []look{
			{0, nil, nil},
			{1, []enforce.Daemon{starting(a)}, nil},
			{2, []enforce.Daemon{runs(a, 1, 0, "")}, nil},
			{99, []enforce.Daemon{runs(a, 1, 0, ""), runs(b, 50, 0, "")}, nil},
		}},
		{"it dies, and comes back", []look{
			{0, []enforce.Daemon{runs(a, 0, 0, "")}, nil},
			{2, []enforce.Daemon{died(a, 1, "killed")}, []string{failed(a, "killed")}},
			{3, []enforce.Daemon{died(a, 1, "killed")}, nil},
			{5, []enforce.Daemon{runs(a, 4, 1, "killed")}, nil},
			{63, []enforce.Daemon{runs(a, 4, 1, "killed")}, nil},
			{64, []enforce.Daemon{runs(a, 4, 1, "killed")}, nil},
			{65, []enforce.Daemon{runs(a, 4, 1, "killed")}, nil},
			{70, []enforce.Daemon{died(a, 2, "killed")}, []string{failed(a, "killed")}},
		}},
		{"it dies every few seconds", []look{
			{0, []enforce.Daemon{died(a, 1, "killed")}, []string{failed(a, "killed")}},
			{10, []enforce.Daemon{runs(a, 9, 2, "killed")}, nil},
			{20, []enforce.Daemon{died(a, 3, "killed")}, nil},
			{90, []enforce.Daemon{runs(a, 85, 4, "killed")}, nil},
		}},
		{"it does not start", []look{
			{0, []enforce.Daemon{starting(a)}, nil},
			{10, []enforce.Daemon{broken(a, 1, "no such file")}, []string{startless(a, "no such file")}},
			{20, []enforce.Daemon{broken(a, 2, "no such file")}, nil},
		}},
		{"it does not take limits", []look{
			{0, []enforce.Daemon{stubborn}, []string{
				"the MPS daemon of GPU 0 (" + a + ") does not take the limits of its containers, and those that need them wait: " +
					"set_default_device_pinned_mem_limit: not supported",
			}},
			{10, []enforce.Daemon{stubborn}, nil},
		}},
		{"the GPU's consumers end, and others start", []look{
			{0, []enforce.Daemon{broken(a, 3, "x"), broken(b, 1, "x")}, []string{startless(a, "x"), startless(b, "x")}},
			{10, []enforce.Daemon{broken(b, 1, "x")}, nil},
			{20, []enforce.Daemon{broken(a, 1, "x"), broken(b, 2, "x")}, []string{startless(a, "x")}},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := mpsWatch{}
			for _, l := range tt.looks {
				var got []string
				for _, d := range w.failures(at(l.at), l.all) {
					got = append(got, mpsFailure(d))
				}
				if diff := cmp.Diff(l.want, got); diff != "" {
					t.Errorf("after %d s (-want +got):\n%s", l.at, diff)
				}
			}
		})
	}
}
