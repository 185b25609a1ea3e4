//go:build linux

// Command demo brings up a real one-node Kubernetes, installs heddle with its
// chart, and shows what it does: a replayed DGX H100 on the real node, other
// machines on simulated ones, a fabric that 72 of them are in, and two gangs that
// are placed by it.
//
//	go run ./test/demo up     make demo
//	go run ./test/demo down   make demo-down
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// name is the demo's cluster.
const name = "demo"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "up":
		return up(ctx, stdout, stderr)
	case len(args) == 1 && args[0] == "down":
		return down(ctx, stdout)
	case len(args) > 0 && args[0] == "workers": // Of `up`; it ends with the cluster.
		return workers(ctx, args[1:], stderr)
	default:
		return errors.New("want `up` or `down`")
	}
}

func down(ctx context.Context, stdout io.Writer) error {
	c, err := cluster.Open(cluster.Options{Name: name})
	if errors.Is(err, cluster.ErrNotUp) {
		fmt.Fprintln(stdout, "the demo is not up")
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.Down(ctx); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the demo is down; what it built stays in the cache for the next time")
	return nil
}

func up(ctx context.Context, stdout, stderr io.Writer) error {
	start := time.Now()
	cache, err := cluster.DefaultCache()
	if err != nil {
		return err
	}
	if missing := cluster.Preflight(cache); len(missing) > 0 {
		fmt.Fprintln(stderr, "This machine lacks what the demo needs:")
		for _, m := range missing {
			fmt.Fprintf(stderr, "  %s\n      %s\n", m.What, m.Remedy)
		}
		return errors.New("nothing was started")
	}
	fmt.Fprintf(stderr, "This machine has what the demo needs: root, cgroups, %d GiB of memory, "+
		"%d GiB of disk the first time.\n"+
		"The first run downloads and builds Kubernetes, containerd and runc into %s:\n"+
		"about 20 minutes of one core. Later runs take a minute or two.\n"+
		"A run that was interrupted goes on where it was.\n\n", cluster.MemoryGiB, cluster.DiskGiB, cache)
	i, err := install.New(ctx, filepath.Join(cache, "install-"+name), stderr)
	if err != nil {
		return err
	}
	c, archives, err := prepare(ctx, i, stderr)
	if err == nil {
		s := &stage{Cluster: c, installer: i, archives: archives, out: stdout, log: stderr}
		err = s.furnish(ctx)
	}
	if err != nil && c != nil {
		// A half-furnished demo helps no one; what it built stays cached.
		return errors.Join(err, c.Down(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nUp after %.0f s. It stays up until you stop it.\n", time.Since(start).Seconds())
	return nil
}

// prepare starts the cluster, and builds heddle and its images while that waits.
// Both come back also with an error.
func prepare(ctx context.Context, i *install.Installer, stderr io.Writer) (
	c *cluster.Cluster, archives []string, err error,
) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		c, err = cluster.Up(ctx, cluster.Options{Name: name, Kwok: true, Log: stderr})
		return err
	})
	group.Go(func() error {
		images := []string{node, topoMaster, scheduler}
		fmt.Fprintf(stderr, "building helm, heddle, %s\n", strings.Join(images, ", "))
		if err := i.BuildHelm(ctx); err != nil {
			return err
		}
		if err := i.BuildAll(ctx, append(images, "heddle")...); err != nil {
			return err
		}
		for _, binary := range images {
			archive, err := i.Pack(ctx, binary)
			if err != nil {
				return err
			}
			archives = append(archives, archive)
		}
		return nil
	})
	err = group.Wait()
	return c, archives, err
}
