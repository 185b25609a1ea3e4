// Command fleet shows heddle on a simulated fleet: no cluster, no root, no network (`make fleet`).
//
// The machines and the API server are simulated. topo-master with its page, the placement of gangs, the choice of
// a GPU for a share and the commands that are shown are those that ship.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
)

// heddle is the command that `make fleet` builds first.
const heddle = "bin/heddle"

func main() {
	nodes := flag.Int("nodes", minNodes, fmt.Sprintf("`number` of machines, %d to %d", minNodes, maxNodes))
	flag.Parse()
	var pause time.Duration
	if term.IsTerminal(int(os.Stdout.Fd())) {
		pause = 4 * time.Second
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, heddle, *nodes, pause)
	interrupted := ctx.Err() != nil // Ctrl-C is the expected end.
	stop()
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

// run starts the cluster and shows the steps. With a pause between the steps, the page stays until ctx ends.
func run(ctx context.Context, out io.Writer, command string, nodes int, pause time.Duration) error {
	if nodes < minNodes || nodes > maxNodes {
		return fmt.Errorf("--nodes %d is not between %d and %d", nodes, minNodes, maxNodes)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	c, err := start(ctx, group, command+".kubeconfig")
	if err == nil {
		s := &story{out: out, command: command, cluster: c, pools: newFleet(nodes), nodes: nodes, pause: pause}
		err = s.run(ctx)
	}
	if err == nil && pause > 0 {
		<-ctx.Done()
	}
	cancel()
	if failed := group.Wait(); failed != nil {
		return failed
	}
	return err
}
