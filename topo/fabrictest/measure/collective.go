package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// The launchers of a collective's ranks.
const (
	// MPI is Open MPI's mpirun on the first node.
	MPI = "mpi"
	// Torchrun runs the command on all nodes with the variables that torchrun and torch.distributed read.
	Torchrun = "torchrun"
)

// ErrGone means that a node of a collective gave way to a job, or died.
var ErrGone = errors.New("it gave way to a job, or died")

// Collective is a program that measures a collective, and prints as nccl-tests do.
type Collective struct {
	Launcher string
	Args     []string
	// Ranks is the number of ranks of each node.
	Ranks int
}

// masterPort is the port of torch.distributed's first rank.
const masterPort = 29500

// Collective runs a collective on nodes and returns the bus bandwidth of its largest size, in GB/s.
func (n *Nodes) Collective(ctx context.Context, c *Collective, nodes []string) (float64, error) {
	run := n.mpirun
	if c.Launcher == Torchrun {
		run = n.torchrun
	}
	output, err := run(ctx, c, nodes)
	var sizes []fabrictest.Size
	if err == nil {
		sizes, err = fabrictest.ParseCollective(output)
	}
	if err != nil {
		// Ranks that wait for others would go on beside the next run. This one ends all but the first process and itself.
		if node := n.gone(ctx, []string{"sh", "-c", "kill -9 -1; true"}, nodes...); node != "" {
			err = fmt.Errorf("node %s: %w", node, ErrGone)
		}
		return 0, err
	}
	return sizes[len(sizes)-1].Busbw, nil
}

// rsh begins the lines by which mpirun starts its daemons: its agent for other nodes is echo, which prints the host and
// a shell command. It has succeeded before the command is run there, and mpirun waits for the daemon.
const rsh = "heddle-rsh"

// maxLine bounds a line of mpirun.
const maxLine = 1 << 20

// mpirun starts ranks from the first node.
func (n *Nodes) mpirun(ctx context.Context, c *Collective, nodes []string) (output string, err error) {
	hosts, byHost := make([]string, len(nodes)), map[string]string{}
	for i, node := range nodes {
		hosts[i], byHost[n.Hosts[node]] = n.Hosts[node]+":"+strconv.Itoa(c.Ranks), node
	}
	args := []string{
		"mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", "echo " + rsh, "--mca", "plm_rsh_no_tree_spawn", "1",
		"--host", strings.Join(hosts, ","), "-np", strconv.Itoa(len(nodes) * c.Ranks), "--bind-to", "none",
	}
	all, ctx := errgroup.WithContext(ctx)
	printed, out := io.Pipe()
	all.Go(func() (err error) {
		defer func() { _ = out.Close() }()
		output, err = n.run(ctx, nodes[0], append(args, c.Args...), out)
		return err
	})
	all.Go(func() error {
		lines := bufio.NewScanner(printed)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			words := strings.SplitN(lines.Text(), " ", 3)
			if len(words) < 3 || words[0] != rsh || byHost[words[1]] == "" {
				continue
			}
			all.Go(func() error {
				_, err := n.Run(ctx, byHost[words[1]], []string{"sh", "-c", words[2]})
				return err
			})
		}
		return printed.CloseWithError(lines.Err())
	})
	err = all.Wait()
	return output, err
}

// torchrun runs the command on all nodes; the first one prints.
func (n *Nodes) torchrun(ctx context.Context, c *Collective, nodes []string) (output string, err error) {
	all, ctx := errgroup.WithContext(ctx) // The others would wait for one that fails.
	for i, node := range nodes {
		args := []string{"env"}
		for variable, value := range map[string]string{
			"MASTER_ADDR": n.Hosts[nodes[0]], "MASTER_PORT": strconv.Itoa(masterPort), "NNODES": strconv.Itoa(len(nodes)),
			"NODE_RANK": strconv.Itoa(i), "NPROC_PER_NODE": strconv.Itoa(c.Ranks),
		} {
			args = append(args, variable+"="+value, "PET_"+variable+"="+value)
		}
		all.Go(func() error {
			out, err := n.Run(ctx, node, append(args, c.Args...))
			if i == 0 {
				output = out
			}
			return err
		})
	}
	err = all.Wait()
	return output, err
}
