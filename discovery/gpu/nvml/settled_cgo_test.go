//go:build cgo && linux

package nvml

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// A daemon that holds its session asks for the state of every NVLink once a minute
// and after an event, and not in every scan. What an error hides is asked again.
func TestSlowPartsAreNotAskedInEveryScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device()
		l := of(d, "")
		var first machine.GPU
		scan := func(what string, calls int) {
			t.Helper()
			g, err := l.GPU(0)
			if err != nil {
				t.Fatal(err)
			}
			if first.UUID == "" {
				first = g
			}
			if diff := cmp.Diff(first, g); diff != "" {
				t.Errorf("%s (-first +now):\n%s", what, diff)
			}
			if n := len(d.GetNvLinkStateCalls()); n != calls {
				t.Errorf("%s: %d calls about the state of links, want %d", what, n, calls)
			}
		}
		scan("first", 19)
		scan("second", 19)
		<-time.After(gpu.SettledFor - time.Second)
		scan("within a minute", 19)
		<-time.After(time.Second)
		scan("after a minute", 38)
		l.event(nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 74})
		scan("after an event", 57)
		if len(d.GetMigModeCalls()) != 5 || len(d.GetGpuFabricInfoCalls()) != 5 {
			t.Error("the mode and the fabric are not asked in every scan")
		}
		works := d.GetNvLinkStateFunc
		d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		l.forget()
		if _, err := l.GPU(0); err == nil {
			t.Error("links that cannot be read are no error")
		}
		d.GetNvLinkStateFunc = works
		scan("after an error", 57+nvml.NVLINK_MAX_LINKS+19)
		l.reset(map[string]nvml.Device{})
		scan("in a new session", 57+nvml.NVLINK_MAX_LINKS+19+19)
	})
}
