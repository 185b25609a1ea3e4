package gpu

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A reading asks for what came after the last; one GPU that hangs, is lost or
// keeps no samples takes nothing from the others.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var asked atomic.Int32
		lost, none := fmt.Errorf("processes: GPU is %w", ErrLost), errors.New("Not Supported")
		all := with("GPU-e", "GPU-d", "GPU-c", "GPU-b", "GPU-a")
		m := NewPoller(telemetry{
			usage: func(uuid string, after uint64) (Usage, error) {
				switch uuid {
				case "GPU-b":
					return Usage{}, lost
				case "GPU-d":
					return Usage{}, fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
				case "GPU-e":
					asked.Add(1)
					<-release
				}
				u := Usage{Processes: []Process{{PID: 7, Bytes: 1 << 20}}}
				switch {
				case uuid == "GPU-c":
					u.SamplesErr = none
				case after == 0:
					u.Samples = []Sample{{PID: 9, At: 40, SM: 5}, {PID: 7, At: 50, SM: 10}, {PID: 7, At: 60, SM: 20}}
				case after == 60:
					u.Samples = []Sample{{PID: 7, At: 70, SM: 30}}
				}
				return u, nil
			},
		})
		reports := func(samples ...Sample) []Usage {
			processes := []Process{{PID: 7, Bytes: 1 << 20}}
			return []Usage{
				{GPU: "GPU-a", Processes: processes, Samples: samples},
				{GPU: "GPU-b", Err: ErrLost},
				{GPU: "GPU-c", Processes: processes, SamplesErr: none},
				{GPU: "GPU-e", Err: ErrSilent},
			}
		}
		began := time.Now()
		for i, want := range [][]Usage{
			reports(Sample{PID: 7, At: 60, SM: 20}, Sample{PID: 9, At: 40, SM: 5}), reports(Sample{PID: 7, At: 70, SM: 30}), reports(),
		} {
			if diff := cmp.Diff(want, m.Usage(t.Context(), all), cmpopts.EquateErrors()); diff != "" {
				t.Errorf("reading %d (-want +got):\n%s", i, diff)
			}
		}
		if took := time.Since(began); took != PollTimeout || asked.Load() != 1 {
			t.Errorf("three readings took %s and left %d calls, want one timeout and one", took, asked.Load())
		}
		close(release)
		synctest.Wait()
		if got := m.Usage(t.Context(), all); got[3].Err != nil || len(got[3].Processes) != 1 {
			t.Errorf("the GPU answers again, and: %+v", got[3])
		}
	})
}
