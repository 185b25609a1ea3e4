package agent

import (
	"context"
	"sync/atomic"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/internal/notify"
)

// driver writes the driver's CDI spec after every round, apart from the loop: a driver
// that hangs must not hold back the health of a device.
type driver struct {
	*Options
	spec *cdi.DriverSpec
	due  notify.Signal
	last *atomic.Pointer[publish.Round]
	// tried is closed after the first try, good or bad.
	tried chan struct{}
}

func newDriver(o *Options, last *atomic.Pointer[publish.Round]) *driver {
	return &driver{
		Options: o, spec: cdi.NewDriverSpec(o.CDIDir, o.Generator, o.Vendors, o.Log), due: notify.New(), last: last,
		tried: make(chan struct{}),
	}
}

// known reports whether the spec has been tried.
func (d *driver) known() bool {
	select {
	case <-d.tried:
		return true
	default:
		return false
	}
}

// imexChannels are nil where all containers with GPUs get the same.
func (d *driver) imexChannels() *inventory.Channels {
	if !d.Features.IMEXByPod {
		return nil
	}
	return &inventory.Channels{Allowed: d.Features.IMEX, Nodes: d.spec.Channels()}
}

// run writes until ctx ends.
func (d *driver) run(ctx context.Context) error {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.due:
		}
		if d.Release.Active() {
			// Making it would open a session with the driver.
			_ = d.spec.Restore() // Update meets the error again.
		} else {
			_ = d.spec.Update(ctx, d.last.Load().Inventory.Machine) // The spec keeps the error.
		}
		problem := d.spec.Problem()
		if problem != logged && problem != "" && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "CDI spec of the driver is incomplete", "reason", problem)
		}
		logged = problem
		if !d.known() {
			close(d.tried)
		}
	}
}
