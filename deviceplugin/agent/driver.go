package agent

import (
	"context"
	"log/slog"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/internal/notify"
)

// driver keeps the driver's CDI spec, apart from the loop: a driver that hangs
// must not hold back the health of a device.
type driver struct {
	*cdi.DriverSpec
	machine func() *machine.Machine
	log     *slog.Logger
	look    notify.Signal
	// ready is closed after the first try, good or bad.
	ready chan struct{}
}

func newDriver(spec *cdi.DriverSpec, m func() *machine.Machine, log *slog.Logger) *driver {
	return &driver{
		DriverSpec: spec, machine: m, log: log, look: notify.New(), ready: make(chan struct{}),
	}
}

// wake asks for an update.
func (d *driver) wake() { d.look.Notify() }

// known reports whether the spec has been tried.
func (d *driver) known() bool {
	select {
	case <-d.ready:
		return true
	default:
		return false
	}
}

// run writes the spec whenever it is woken, until ctx ends.
func (d *driver) run(ctx context.Context) error {
	logged := ""
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-d.look:
		}
		wrong := ""
		if err := d.Update(ctx, d.machine()); err != nil {
			wrong = err.Error()
		}
		if wrong != logged && wrong != "" && ctx.Err() == nil {
			d.log.WarnContext(ctx, "CDI spec of the driver is incomplete", "reason", wrong)
		}
		logged = wrong
		if first {
			close(d.ready)
		}
	}
}
