//go:build cgo && linux

package nvidia_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/test/nvidia"
)

// The error counters of NVLinks are read by the next scan after each Take, and change nothing in the machine.
func TestLinkErrors(t *testing.T) {
	n := newNode(t)
	plain := n.scan(t)
	counters := gpu.NewLinkCounters()
	library := nvml.New(gpu.Options{DriverRoot: n.driver.Root, LinkCounters: counters})
	n.reader = gpu.NewReader(gpu.Source{Vendor: nvml.Vendor(), Library: library}, 0)
	n.control.Errors = []nvidia.LinkErrors{{GPU: 3, Link: 17, Replays: 5, Recoveries: 1, CRC: 1 << 40}}
	if diff := cmp.Diff(plain, n.scan(t)); diff != "" {
		t.Errorf("the machine (-without +with counters):\n%s", diff)
	}
	n.control.Errors[0].Replays = 6 // After the scan that read them.
	n.scan(t)
	errors := func(replays, recoveries, crc int64) machine.LinkErrors {
		return machine.LinkErrors{"nvlink-replays": replays, "nvlink-recoveries": recoveries, "nvlink-crc-errors": crc}
	}
	for _, want := range []machine.LinkErrors{errors(5, 1, 1<<40), errors(6, 1, 1<<40)} {
		all := counters.Take()
		if len(all) != 8 {
			t.Errorf("%d GPUs", len(all))
		}
		for uuid, links := range all {
			for name, e := range links {
				w := errors(0, 0, 0)
				if uuid == n.control.GPUs[3].UUID && name == "NVLink 17" {
					w = want
				}
				if len(links) != 18 || !maps.Equal(e, w) {
					t.Errorf("%s %s: %+v of %d links", uuid, name, e, len(links))
				}
			}
		}
		n.scan(t)
	}
	counters.Take()
	n.scan(t, nvidia.Failure{Function: "DeviceGetFieldValues", GPU: 3, Arg: nvidia.Any, Return: nvidia.Unknown})
	if links := counters.Take()[n.control.GPUs[3].UUID]; len(links) != 0 {
		t.Errorf("a driver that does not answer: %+v", links)
	}
}
