// Package demo is `heddle demo`: a simulated fleet, and the product's own code at work on
// it. It needs no cluster, no root and no network.
//
// What is simulated are the machines and the API server. topo-master with its page, the
// placement of gangs, the choice of a GPU for a share and the commands that are shown are
// those that ship.
package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
)

const long = `Show heddle on a simulated fleet: no cluster, no root, no network.

The fleet is a mixed one: DGX H100 with eight rails, GB200 racks, H20 in
switchboxes. A real topo-master maps it and serves its page on this machine; the
scheduler's placement puts gangs on it; a cable is put into the wrong switch,
found and mended; pods share GPUs. Each step names what to look at. At the end
the page stays until Ctrl-C; with --once, or when the output is not a terminal, the
command ends.`

// defaultListen is the port of a real topo-master.
const defaultListen = "127.0.0.1:9001"

type options struct {
	nodes  int
	listen string
	once   bool
	// pause is the time between two steps, to look at the page.
	pause time.Duration
}

// NewCommand makes `heddle demo`.
func NewCommand() *cobra.Command {
	o := options{pause: 4 * time.Second}
	c := &cobra.Command{
		Use: "demo", Short: "Show heddle on a simulated fleet, without a cluster", Long: long, Args: cobra.NoArgs,
	}
	c.Flags().IntVar(&o.nodes, "nodes", minNodes,
		fmt.Sprintf("`number` of machines, %d to %d", minNodes, maxNodes))
	c.Flags().StringVar(&o.listen, "listen", defaultListen,
		"`address` of the page; where the default one is in use, another port is taken")
	c.Flags().BoolVar(&o.once, "once", false, "end after the last step, and do not pause")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.nodes < minNodes || o.nodes > maxNodes {
			return cli.UsageErrorf(c, "--nodes %d is not %d to %d", o.nodes, minNodes, maxNodes)
		}
		o.once = o.once || !cli.IsTerminal(c.OutOrStdout())
		return run(c, &o)
	}
	return c
}

// run starts the cluster, shows the steps, and takes the cluster away.
func run(c *cobra.Command, o *options) error {
	outer := c.Context()
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	simulated, err := start(ctx, group, o.listen, !c.Flags().Changed("listen"))
	if err == nil {
		s := story{command: c, options: o, cluster: simulated, pools: newFleet(o.nodes)}
		err = s.run(ctx)
	}
	if err == nil && !o.once {
		<-ctx.Done()
	}
	interrupted := outer.Err() != nil
	cancel()
	if failed := group.Wait(); failed != nil {
		return failed
	}
	if interrupted {
		return nil // Ctrl-C is how the demo is meant to end.
	}
	return err
}
