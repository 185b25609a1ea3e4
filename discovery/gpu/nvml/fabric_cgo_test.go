//go:build cgo && linux

package nvml

import "testing"

func TestFabricFaults(t *testing.T) {
	for mask, want := range map[uint32]string{
		0: "",
		// All fields report that all is well.
		2 | 2<<2 | 2<<4 | 2<<6 | 1<<8 | 1<<12 | 1<<14: "",
		1:               "its bandwidth is degraded",
		2 | 1<<4 | 5<<8: "its routes are unhealthy, its configuration is incorrect (insufficient NVLinks)",
		1<<2 | 1<<6:     "its routes are being recovered, an access timeout is being recovered",
		8<<8 | 2<<12:    "its configuration is incorrect (invalid state of the GPU)",
	} {
		if got := fabricFaults(mask); got != want {
			t.Errorf("mask %#x: %q, want %q", mask, got, want)
		}
	}
}
