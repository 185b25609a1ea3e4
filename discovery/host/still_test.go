package host

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// A quick scan sees what changes without a kernel event, and the rest with the next full one.
func TestQuickScan(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	synctest.Test(t, func(t *testing.T) {
		h := at(tree, &gpus{count: 8})
		scan := func() *machine.Machine { return h.scan(t.Context(), true) }
		h.Scan(t.Context())
		before := scan() // The first scan did not know the ports yet.
		if scan() != before || &scan().HCAs[0] != &before.HCAs[0] {
			t.Error("nothing changed, and all was read again")
		}
		port := "sys/class/infiniband/mlx5_3/ports/1/"
		for _, tt := range []struct {
			file, text string
			seen       func(p *machine.Port) bool
		}{
			{port + "state", "1: DOWN", func(p *machine.Port) bool { return p.State == machine.PortDown }},
			{port + "phys_state", "3: Disabled", func(p *machine.Port) bool { return p.PhysState == "Disabled" }},
			{port + "rate", "100 Gb/sec (4X EDR)", func(p *machine.Port) bool { return *p.RateGbps == 100 }},
			{port + "sm_lid", "0x0", func(p *machine.Port) bool { return p.SMLID == 0 }},
			{port + "lid", "0x99", func(p *machine.Port) bool { return p.LID == 0x99 }},
			{"sys/class/net/ib3/operstate", "up", func(p *machine.Port) bool { return p.Netdevs[0].OperState == "up" }},
		} {
			tree.Write(tt.file, tt.text)
			if m := scan(); !tt.seen(&m.HCAs[3].Ports[0]) {
				t.Errorf("%s: %+v", tt.file, m.HCAs[3].Ports)
			}
		}
		const speed = "2.5 GT/s PCIe"
		tree.Write("sys/bus/pci/devices/0000:33:00.0/current_link_speed", speed)
		if got := scan().Function("0000:33:00.0").LinkSpeed; got == speed {
			t.Error("a quick scan reads what the kernel reports, or nobody")
		}
		<-time.After(readEvery + time.Second)
		if got := scan().Function("0000:33:00.0").LinkSpeed; got != speed {
			t.Errorf("the next full scan reads %s", got)
		}
		tree.Remove("sys/class/infiniband/mlx5_3")
		tree.Remove("sys/bus/pci/devices/0000:33:00.0")
		if m := scan(); len(m.HCAs) != 8 || m.Function("0000:33:00.0") != nil {
			t.Errorf("%d HCAs, function %v", len(m.HCAs), m.Function("0000:33:00.0"))
		}
	})
}

// A device that hangs is left to the full scan, which reports it until it answers.
func TestQuickScanOfAHangingDevice(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	h := impatient(tree)
	h.Scan(t.Context())
	sound := h.scan(t.Context(), true)
	release := tree.Hang("sys/class/infiniband/mlx5_3/ports/1/state")
	for range 2 {
		if m := h.scan(t.Context(), true); len(m.Skipped) != 1 || m.Skipped[0].Name != "mlx5_3" {
			t.Errorf("skipped %v", m.Skipped)
		}
	}
	release("4: ACTIVE")
	for len(h.scan(t.Context(), true).Skipped) > 0 { // Until the call that hung has ended.
	}
	if m := h.scan(t.Context(), true); len(m.Skipped) != 0 || m.HCAs[3].Ports[0].State != sound.HCAs[3].Ports[0].State {
		t.Errorf("it answers again, and: %v, %+v", m.Skipped, m.HCAs[3].Ports)
	}
}
