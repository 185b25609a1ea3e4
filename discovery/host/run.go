package host

import (
	"context"
	"time"

	"github.com/heddle-dev/heddle/internal/notify"
)

// settle is how long events are gathered before a scan. An RDMA device brings
// a dozen; a pod's network device brings two for each pod.
const settle = 200 * time.Millisecond

// Run keeps the machine current until ctx ends, and then returns nil: a scan at
// the start, after kernel events, and every Interval. Where the kernel gives no events (another
// system, no permission), the interval is all there is; that is logged once. It
// returns a gpu.ErrRestart when a driver was upgraded under this process.
func (h *Host) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	events := notify.New()
	wait := watch(ctx, h.vendors, h.matters, events)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		if err := wait(); err != nil && ctx.Err() == nil {
			h.logger.Warn("no kernel events, scanning by the clock only", "err", err, "interval", h.options.Interval)
		}
	}()
	defer func() { cancel(); <-watching }()
	return h.loop(ctx, events)
}

func (h *Host) loop(ctx context.Context, events <-chan struct{}) error {
	ticker := time.NewTicker(h.options.Interval)
	defer ticker.Stop()
	for {
		h.Scan(ctx)
		if err := h.restart(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-events:
			if !gather(ctx, events) {
				return nil
			}
		}
	}
}

// gather waits until a burst of events is over, or ctx ends.
func gather(ctx context.Context, events <-chan struct{}) bool {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	select {
	case <-events:
	default:
	}
	return true
}
