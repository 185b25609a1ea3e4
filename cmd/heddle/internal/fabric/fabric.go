// Package fabric is `heddle fabric`: it measures the cables of idle nodes, names the slow ones, and keeps the results
// in the NodeTopologies of the nodes.
package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/topo"
	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

// NewCommand makes `heddle fabric`.
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "fabric COMMAND", DisableFlagsInUseLine: true, Short: "Measure the cables of idle nodes",
		Args: cobra.NoArgs, RunE: cli.NeedCommand,
	}
	c.AddCommand(testCommand())
	return c
}

// options are the flags of `heddle fabric test`.
type options struct {
	group, namespace, image, scheduler string
	nodes, perftest                    []string
	seconds, uplinks                   int
	maxDuration                        time.Duration
	dryRun, label                      bool
	limit                              float64
	// program is the collective: its arguments are the command after --.
	program measure.Collective
}

func testCommand() *cobra.Command {
	o, at := &options{}, &topo.Master{}
	c := &cobra.Command{
		Use: "test --image IMAGE [flags] [-- COLLECTIVE...]", DisableFlagsInUseLine: true,
		Short: "Find the slow cable, HCA or node; exit code 1 if there is one",
		Long: `Find the slow cable, HCA or node among idle nodes.

A pod with all devices of its node runs on each node, at the lowest priority: a
job that needs the node evicts it at once, and the test goes on without. The
image needs perftest, sh and coreutils. First each HCA is measured alone, then
ports on the same leaf in pairs, then pairs of leaves, no HCA twice at a time;
slow flows are measured again. The part that all slow flows have in common is
named.

With a command after --, it then runs that collective on all nodes, and if it is
slow on halves of them until one node, and one of its rails, is left. The
command prints as nccl-tests do. --launcher mpi runs it under Open MPI's mpirun
without ssh, torchrun on each node with the variables of torch.distributed.

The last 10 results of each port are kept in the NodeTopologies. A slow port is
a finding degraded-link until it passes a test or its link changes.
heddle topo bandwidth shows the results.`,
		Example: `  heddle fabric test --group leaf-1 --image registry.example.com/perftest
  heddle fabric test --group leaf-1 --image registry.example.com/nccl-tests \
    --ranks 8 -- all_reduce_perf -b 512M -e 8G -f 2`,
	}
	at.Register(c)
	f := c.Flags()
	f.StringVar(&o.group, "group", "", "name of a `group` of the topology tree, such as leaf-1")
	f.StringSliceVar(&o.nodes, "nodes", nil, "the `nodes`, comma-separated")
	f.StringVar(&o.image, "image", "", "`image` with perftest, and the collective's programs")
	f.StringVar(&o.scheduler, "scheduler", "heddle-scheduler", "`name` of the scheduler of the test's pods")
	f.DurationVar(&o.maxDuration, "max-duration", 30*time.Minute, "end the test after this time with what was measured")
	f.IntVar(&o.seconds, "seconds", 3, "duration of a measurement of bandwidth, in `seconds`")
	f.IntVar(&o.uplinks, "uplinks", 8, "`number` of uplinks of a leaf: pairs of leaves are measured 7 times as often")
	f.StringSliceVar(&o.perftest, "perftest", nil, "more `arguments` for perftest, comma-separated, such as -x,3")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the nodes and the number of rounds, and create nothing")
	f.BoolVar(&o.label, "label", false, "label the nodes: fabric.tested, fabric.bandwidth")
	f.StringVar(&o.program.Launcher, "launcher", measure.MPI, "`launcher` of the collective: mpi, torchrun")
	f.IntVar(&o.program.Ranks, "ranks", 8, "`number` of ranks of the collective on each node")
	f.Float64Var(&o.limit, "limit", 0, "least bus bandwidth of the collective in `GB/s`; default 80 % of its best run")
	cli.Complete(c, "launcher", measure.MPI, measure.Torchrun)
	output := cli.AddOutput(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		o.program.Args, o.namespace = args, at.Cluster.Given(cluster.System)
		if err := o.check(c); err != nil {
			return err
		}
		if o.group != "" {
			var err error
			if o.nodes, err = at.Group(c, o.group); err != nil {
				return err
			}
		}
		client, err := at.Cluster.Client()
		if err != nil {
			return err
		}
		answer, err := newTest(c, o, client).run(c.Context())
		if answer == nil {
			return err
		}
		// What was measured before an error is an answer too.
		return cmp.Or(err, output.PrintFindings(c, answer, answer.text(), len(answer.Faults)))
	}
	return c
}

func (o *options) check(c *cobra.Command) error {
	switch {
	case (o.group == "") == (len(o.nodes) == 0):
		return cli.UsageErrorf(c, "give either --group or --nodes")
	case o.image == "" && !o.dryRun:
		return cli.UsageErrorf(c, "--image is required: an image with perftest")
	case o.program.Launcher != measure.MPI && o.program.Launcher != measure.Torchrun:
		return cli.UsageErrorf(c, "invalid --launcher %q: want mpi or torchrun", o.program.Launcher)
	case o.seconds < 1 || o.uplinks < 1 || o.program.Ranks < 1 || o.maxDuration < time.Second:
		return cli.UsageErrorf(c, "--seconds, --uplinks, --ranks and --max-duration must be at least 1")
	}
	return nil
}

// test is a test in progress.
type test struct {
	c      *cobra.Command
	o      *options
	client *cluster.Client
	// nodes are the nodes under test, pods the pod of each.
	nodes []*node
	pods  map[string]*corev1.Pod
	// leases has the Lease of each lowest group: the first test of a group has it alone.
	leases map[string]*coordinationv1.Lease
	// id is the value of runLabel of the pods.
	id     string
	answer Answer
}

func newTest(c *cobra.Command, o *options, client *cluster.Client) *test {
	return &test{
		c: c, o: o, client: client, pods: map[string]*corev1.Pod{}, leases: map[string]*coordinationv1.Lease{},
		answer: Answer{Nodes: []string{}, Skipped: map[string]string{}, Faults: []fabrictest.Fault{}},
	}
}

func (t *test) run(ctx context.Context) (*Answer, error) {
	if err := t.read(ctx); err != nil {
		return nil, err
	}
	if t.o.dryRun {
		return t.plan(), nil
	}
	// A client that is interrupted cleans up as well.
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		if err := t.clean(last); err != nil {
			t.note("%v", err)
		}
	}()
	if err := t.lock(ctx); err != nil {
		return nil, err
	}
	if err := t.start(ctx); err != nil {
		return nil, err
	}
	on := &measure.Nodes{
		Executor: t, Hosts: map[string]string{}, Seconds: t.o.seconds, Iterations: iterations, Args: t.o.perftest,
	}
	for name, pod := range t.pods {
		on.Hosts[name] = pod.Status.PodIP
	}
	return &t.answer, t.measure(ctx, on)
}

const (
	cleanTimeout = 30 * time.Second
	// iterations is the number of reads of a measurement of latency.
	iterations = 1000
)

// note prints to stderr how the test goes on.
func (t *test) note(format string, args ...any) { t.c.PrintErrf(format+"\n", args...) }

// skip goes on without a node.
func (t *test) skip(name, reason string) {
	t.answer.Skipped[name] = cli.Printable(reason)
	t.nodes = slices.DeleteFunc(slices.Clone(t.nodes), func(n *node) bool { return n.name == name })
}

// measure runs the rounds, and then the collective.
func (t *test) measure(ctx context.Context, on *measure.Nodes) error {
	ctx, cancel := context.WithTimeout(ctx, t.o.maxDuration)
	defer cancel()
	var ports []fabrictest.Port
	for _, n := range t.nodes {
		if err := n.probe(ctx, on); err != nil {
			t.skip(n.name, err.Error())
		} else {
			ports = append(ports, n.ports...)
		}
	}
	pairs := fabrictest.NewTest(ports, t.o.uplinks)
	for flows := pairs.Next(); flows != nil; flows = pairs.Next() {
		t.note("measuring %s, %s left", cli.Count(len(flows), "flow"), cli.Count(pairs.Left(), "round"))
		results := on.Round(ctx, ports, flows)
		if ctx.Err() != nil {
			break
		}
		for i := range results {
			if r := &results[i]; r.Failure != "" {
				t.note("%s to %s: %s", ports[r.From].String(), ports[r.To].String(), cli.Printable(r.Failure))
			}
		}
		pairs.Add(results)
		t.answer.Rounds++
	}
	t.answer.Incomplete = ctx.Err() != nil
	t.answer.add(pairs)
	// The results are written although the time is over or the client is interrupted.
	err := t.write(context.WithoutCancel(ctx), pairs)
	for _, node := range pairs.Gone() {
		t.skip(node, measure.ErrGone.Error())
	}
	switch {
	case len(ports) == 0:
		return errors.New("no node can be tested")
	case len(t.o.program.Args) > 0 && !t.answer.Incomplete:
		err = errors.Join(err, t.collective(ctx, on))
	}
	return err
}

// collective runs the collective, and bisects the nodes if it is slow.
func (t *test) collective(ctx context.Context, on *measure.Nodes) error {
	if len(t.nodes) < 2 {
		return errors.New("a collective needs at least two nodes")
	}
	var all []string
	for _, n := range t.nodes {
		all = append(all, n.name)
	}
	run := func(names []string, rail *int32) (float64, error) {
		program, what := t.o.program, t.o.program.Args[0]
		if rail != nil {
			what += fmt.Sprintf(" by rail %d", *rail)
			program.Args = slices.Concat([]string{"env", "NCCL_IB_HCA==" + t.hcas(names, *rail)}, program.Args)
		}
		busbw, err := on.Collective(ctx, &program, names)
		t.note("%s on %s: %.1f GB/s", what, cli.First(names, 4, ", "), busbw)
		if err != nil && ctx.Err() == nil && !errors.Is(err, measure.ErrGone) {
			t.note("%s", cli.Printable(err.Error()))
			return 0, nil // A collective that fails is slow.
		}
		return busbw, err
	}
	outcome, err := fabrictest.Bisect(all, t.nodes[0].rails(), t.o.limit, run)
	if err != nil {
		return err
	}
	t.answer.Collective = &outcome
	if len(outcome.Nodes) > 0 {
		t.answer.Faults = append(t.answer.Faults, slowest(&outcome, t.o.limit))
	}
	return nil
}

// hcas returns the HCAs of a rail of some nodes, comma-separated.
func (t *test) hcas(names []string, rail int32) string {
	var all []string
	for _, n := range t.nodes {
		for i := range n.ports {
			if n.ports[i].Rail == rail && slices.Contains(names, n.name) {
				all = append(all, n.ports[i].HCA)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}
