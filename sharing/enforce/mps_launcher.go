package enforce

import (
	"context"
	"syscall"
)

// launcher starts control daemons: as children of this process ([children]), or of a
// [Keeper], which goes on when this process ends ([remote]).
type launcher interface {
	// attach finds a daemon that runs as start would start it.
	attach(ctx context.Context, p *program) (c process, found bool, err error)
	start(ctx context.Context, p *program) (process, error)
	// retain ends the daemons that another process had last, but those of these GPUs.
	retain(ctx context.Context, gpus []string) error
	// outlives reports whether the daemons go on when this process ends.
	outlives() bool
}

// process is a control daemon with its servers.
type process interface {
	// ended is closed once it has ended; fault is its exit error then.
	ended() <-chan struct{}
	fault() error
	signal(s syscall.Signal)
	// detach leaves it to the next process.
	detach()
}

// children is the launcher of daemons that end with this process.
type children struct{}

func (children) attach(context.Context, *program) (process, bool, error) { return nil, false, nil }

func (children) start(ctx context.Context, p *program) (process, error) {
	c, err := p.start(ctx)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (children) retain(context.Context, []string) error { return nil }

func (children) outlives() bool { return false }

func (c *child) ended() <-chan struct{} { return c.done }

func (c *child) fault() error { return c.err }

func (*child) detach() {}
