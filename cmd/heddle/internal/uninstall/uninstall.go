// Package uninstall implements `heddle uninstall`: it removes everything that an installation
// leaves in Nodes and on hosts. The chart runs it before and after its objects are deleted.
//
// Daemons are deleted first, since they would write removed data again. The pods of the
// device plugin's DaemonSet clean their hosts, with other arguments; objects of the API server
// are cleaned from here, so that Nodes that are not ready are clean too.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

const (
	// phaseCapacity removes the resources that kubelets keep, phaseNodes everything else.
	phaseNodes, phaseCapacity = "nodes", "capacity"
	// every is the interval of polls.
	every = time.Second
	// absence is the time for which resources must stay away: a kubelet writes a changed Node
	// status every 10 s (nodeStatusUpdateFrequency).
	absence = 25 * time.Second
	// half of the five minutes for which a kubelet keeps the resources of a plugin that has
	// ended (cm/devicemanager, endpointStopGracePeriod). Helm waits for a hook at most five
	// minutes by default, so each of the two hooks waits for one half.
	half = 150 * time.Second
)

type options struct {
	namespace, release, phase string
	force, crds               bool
}

// NewCommand returns `heddle uninstall`.
func NewCommand() *cobra.Command {
	var at cluster.Flags
	var o options
	c := &cobra.Command{
		Use: "uninstall", Short: "Remove heddle's traces from Nodes and hosts", Args: cobra.NoArgs,
		Long: `Remove heddle's traces from Nodes and hosts: labels, taints, annotations, conditions,
resources that kubelets keep as 0, CDI specs and other files, leases, reports and
exports. The daemons are deleted first.

helm uninstall runs this command. Run it by hand where Helm runs no hooks, such as
with Argo CD, and to clean up after an uninstall without it. It fails while pods have
devices of heddle, which could not start again, unless --force is given. Kubelets keep
resources for five minutes after their plugin has ended; the command waits for that.`,
	}
	at.Register(c)
	flags := c.Flags()
	flags.StringVarP(&o.namespace, "namespace", "n", "heddle-system", "`namespace` of heddle's daemons")
	flags.BoolVar(&o.force, "force", false, "continue even if pods have devices of heddle")
	flags.BoolVar(&o.crds, "crds", false, "delete the CRDs too, with all objects of their kinds")
	flags.StringVar(&o.release, "release", "", "`name` of the Helm release: --crds deletes its PodGroup CRDs")
	flags.StringVar(&o.phase, "phase", "", "`part` of the work, for hooks: nodes or capacity; default all")
	cli.Complete(c, "phase", phaseNodes, phaseCapacity)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.phase != "" && o.phase != phaseNodes && o.phase != phaseCapacity {
			return cli.UsageErrorf(c, "--phase %q is neither nodes nor capacity", o.phase)
		}
		client, err := at.Client()
		if err != nil {
			return err
		}
		u := &uninstall{options: o, api: api{client}, out: c.OutOrStdout(), every: every, absence: absence, half: half}
		return u.run(c.Context())
	}
	return c
}

// uninstall holds the state of one run.
type uninstall struct {
	options
	api

	out                  io.Writer
	every, absence, half time.Duration
}

// progress reports progress, in a hook to the Job's log.
func (u *uninstall) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(u.out, format+"\n", args...) // The outcome is the exit code.
}

func (u *uninstall) run(ctx context.Context) error {
	if u.phase != phaseCapacity {
		if err := u.cleanUp(ctx); err != nil {
			return err
		}
	}
	if u.phase != phaseNodes {
		return u.forget(ctx)
	}
	within, cancel := context.WithTimeout(ctx, u.half)
	defer cancel()
	err := u.forget(within)
	if within.Err() != nil && ctx.Err() == nil {
		return nil // The other hook continues.
	}
	return err
}

// cleanUp removes everything but the resources that kubelets keep.
func (u *uninstall) cleanUp(ctx context.Context) error {
	plugin, err := u.daemonSet(ctx, devicePlugin)
	if err != nil {
		return err
	}
	served, err := u.resources(ctx, plugin)
	if err != nil {
		return err
	}
	if err := u.checkHolders(ctx, served); err != nil {
		return err
	}
	if err := u.stop(ctx, plugin); err != nil {
		return err
	}
	if err := u.cleanNodes(ctx, served); err != nil {
		return err
	}
	return u.deleteObjects(ctx)
}

// forget removes the resources that kubelets keep as 0 from Nodes, until none comes back.
// Nodes that are not ready are cleaned too; their kubelets write 0 again if they come back
// within five minutes.
func (u *uninstall) forget(ctx context.Context) error {
	since, reported := time.Now(), false
	for {
		waiting, err := u.nodes(ctx)
		waiting = slices.DeleteFunc(waiting, func(n *corev1.Node) bool {
			return n.Annotations[wellknown.UninstalledResources] == ""
		})
		if err != nil || len(waiting) == 0 {
			return err
		}
		if !reported {
			u.progress("waiting: kubelets keep resources for five minutes after their plugin has ended")
			reported = true
		}
		again, err := u.takeAway(ctx, waiting)
		switch {
		case err != nil:
			return err
		case again:
			since = time.Now()
		case time.Since(since) > u.absence:
			return u.finish(ctx, waiting)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(u.every, u.absence/5)):
		}
	}
}

// takeAway removes the resources of Nodes, and reports whether there were any.
func (u *uninstall) takeAway(ctx context.Context, nodes []*corev1.Node) (found bool, err error) {
	for _, node := range nodes {
		if gone := withoutResources(node); gone != nil {
			found, err = true, errors.Join(err, u.patchStatus(ctx, node.Name, gone))
		}
	}
	return found, err
}

// finish removes the record of the resources.
func (u *uninstall) finish(ctx context.Context, nodes []*corev1.Node) (err error) {
	for _, node := range nodes {
		err = errors.Join(err, u.annotate(ctx, node.Name, map[string]any{wellknown.UninstalledResources: nil}))
	}
	u.progress("resources removed from %s", cli.Count(len(nodes), "Node"))
	return err
}

// until polls until the answer is empty, and reports each other answer once.
func (u *uninstall) until(ctx context.Context, ask func(context.Context) (waitsFor string, err error)) error {
	last := ""
	err := wait.PollUntilContextCancel(ctx, u.every, true, func(ctx context.Context) (bool, error) {
		waitsFor, err := ask(ctx)
		if err == nil && waitsFor != last && waitsFor != "" {
			u.progress("waiting: %s", waitsFor)
		}
		last = waitsFor
		return waitsFor == "", err
	})
	if err != nil && last != "" {
		return fmt.Errorf("%s: %w", last, err)
	}
	return err
}
