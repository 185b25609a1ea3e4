package program

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"
)

// Part is a daemon that a process runs together with others.
type Part struct {
	// Name is the word before the daemon's own flags.
	Name   string
	Daemon Daemon
}

// Together runs several daemons in one process. Behind the flags of the process come the
// names of daemons, each with its own flags behind it. They have one log, one address
// and one machine, which the first of parts that is named and reads one does. When one
// fails, all end.
func Together(ctx context.Context, name, version string, parts []Part, args []string, stdout, stderr io.Writer) error {
	p := &process{parts: map[string]*served{}, machine: newSharedMachine(), registry: NewRegistry(version)}
	for _, part := range parts {
		p.known = append(p.known, part.Name)
	}
	groups := p.split(args)
	if err := parse(name, p, groups[0], stderr); err != nil {
		return err
	}
	var common []string
	p.flags.Visit(func(f *flag.Flag) {
		if f.Name != "metrics-address" {
			common = append(common, "--"+f.Name+"="+f.Value.String())
		}
	})
	for _, part := range parts {
		own := slices.DeleteFunc(slices.Clone(groups[1:]), func(g []string) bool { return g[0] != part.Name })
		switch {
		case len(own) == 0:
			continue
		case len(own) > 1:
			return usage(stderr, name, part.Name+" is named twice")
		}
		if err := parse(name+" "+part.Name, part.Daemon, slices.Concat(common, own[0][1:]), stderr); err != nil {
			return err
		}
		p.named = append(p.named, part)
	}
	if len(p.named) == 0 && !p.version {
		return usage(stderr, name, "no daemon is named: see --help")
	}
	return runParsed(ctx, name, version, p, stdout, stderr)
}

// split cuts arguments before each name of a daemon. The first group is what is before all
// of them.
func (p *process) split(args []string) [][]string {
	groups := [][]string{nil}
	for _, arg := range args {
		if slices.Contains(p.known, arg) {
			groups = append(groups, nil)
		}
		last := len(groups) - 1
		groups[last] = append(groups[last], arg)
	}
	return groups
}

func usage(stderr io.Writer, name, wrong string) error {
	fmt.Fprintf(stderr, "%s: %s\n", name, wrong)
	return ErrUsage
}

// process is what daemons of one process have in common.
type process struct {
	Flags

	host    Host
	flags   *flag.FlagSet
	address string
	// known are the names of all daemons, named those to run.
	known    []string
	named    []Part
	machine  *sharedMachine
	registry *prometheus.Registry

	mu    sync.Mutex // guards parts and what they point to
	parts map[string]*served
}

// served is what a daemon answers at the process's address: nothing before it has begun
// to.
type served struct {
	gatherer     prometheus.Gatherer
	alive, ready func() string
	pods         *Restricted
}

// Register implements [Daemon]: what daemons of a node have in common, and one address.
func (p *process) Register(fs *flag.FlagSet) {
	p.flags = fs
	p.host.RegisterHost(fs, 0)
	fs.StringVar(&p.address, "metrics-address", ":9102",
		"address of /metrics, /healthz and /readyz of all daemons together; empty: none")
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: %s [FLAGS] DAEMON [ITS FLAGS] [DAEMON [ITS FLAGS]]...\n\n"+
			"DAEMON is one of %s, and DAEMON --help prints its flags.\n"+
			"They have one log and one machine, as the flags of the first of this list have them. FLAGS are\n"+
			"for each of them:\n\n", fs.Name(), strings.Join(p.known, ", "))
		fs.PrintDefaults()
	}
}

// Check implements [Daemon].
func (p *process) Check() error { return nil }

// Enter implements exclusive, for the daemon that is: the others wait with it, so that two
// processes never write the same either.
func (p *process) Enter(ctx context.Context, log *slog.Logger) (io.Closer, error) {
	for _, part := range p.named {
		if e, ok := part.Daemon.(exclusive); ok {
			return e.Enter(ctx, log.With("daemon", part.Name))
		}
	}
	return nil, nil //nolint:nilnil // None of them needs it.
}

// Run implements [Daemon]: it runs those that are named.
func (p *process) Run(ctx context.Context, log *slog.Logger, stdout io.Writer) error {
	p.SmallHeap()
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range p.named {
		p.parts[part.Name] = &served{}
		common := part.Daemon.Common()
		common.process, common.part = p, part.Name
		if d, ok := part.Daemon.(interface{ Reads() *Host }); ok && d.Reads() != nil {
			p.machine.add(ctx, d.Reads())
		}
	}
	group.Go(func() error {
		all := prometheus.Gatherers{p.registry, prometheus.GathererFunc(p.gather)}
		return serve(ctx, log, p.address, all, p.alive, p.ready, p)
	})
	for _, part := range p.named {
		group.Go(func() error {
			if err := part.Daemon.Run(ctx, log.With("daemon", part.Name), stdout); err != nil {
				return fmt.Errorf("%s: %w", part.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// join adds what a daemon answers, until ctx ends.
func (p *process) join(ctx context.Context, part string, s *served) {
	p.mu.Lock()
	p.parts[part] = s
	p.mu.Unlock()
	<-ctx.Done()
}

// serving are the daemons that have begun to serve, and the name of one that has not.
func (p *process) serving() (list []*served, starting string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.parts {
		if s.gatherer == nil {
			starting = name
			continue
		}
		list = append(list, s)
	}
	return list, starting
}

func (p *process) gather() ([]*dto.MetricFamily, error) {
	list, _ := p.serving()
	var all prometheus.Gatherers
	for _, s := range list {
		all = append(all, s.gatherer)
	}
	return all.Gather()
}

// alive does not wait for a daemon that starts: as a process of its own it would have no
// probe then.
func (p *process) alive() string {
	list, _ := p.serving()
	return first(list, func(s *served) string { return s.alive() })
}

func (p *process) ready() string {
	list, starting := p.serving()
	if starting != "" {
		return starting + " starts"
	}
	return first(list, func(s *served) string { return s.ready() })
}

func first(list []*served, wrong func(*served) string) string {
	for _, s := range list {
		if text := wrong(s); text != "" {
			return text
		}
	}
	return ""
}

// restricted is the one daemon's that has it.
func (p *process) restricted() *Restricted {
	list, _ := p.serving()
	for _, s := range list {
		if s.pods != nil {
			return s.pods
		}
	}
	return nil
}
