package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// Launcher starts the ranks of a collective.
type Launcher string

// The launchers.
const (
	// MPI is Open MPI's mpirun on the first node.
	MPI Launcher = "mpi"
	// Torchrun runs the command on all nodes with the variables that torchrun and torch.distributed read.
	Torchrun Launcher = "torchrun"
)

// ErrGone means that a node of a collective gave way to a job, or died.
var ErrGone = errors.New("it gave way to a job, or died")

// Collective is a program that measures a collective, and prints as nccl-tests do.
type Collective struct {
	Launcher Launcher
	Args     []string
	// Ranks is the number of ranks of each node.
	Ranks int
	Env   []string
}

// masterPort is the port of torch.distributed's first rank.
const masterPort = 29500

// Collective runs a collective on nodes and returns the bus bandwidth of its largest size, in GB/s.
func (n *Nodes) Collective(ctx context.Context, c *Collective, nodes, env []string) (float64, error) {
	env = append(env, c.Env...)
	var output string
	var err error
	if c.Launcher == Torchrun {
		output, err = n.torchrun(ctx, c, nodes, env)
	} else {
		output, err = n.mpirun(ctx, c, nodes, env)
	}
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
	for _, s := range sizes {
		if s.Wrong > 0 {
			return 0, fmt.Errorf("%d wrong values at size %d", s.Wrong, s.Bytes)
		}
	}
	return sizes[len(sizes)-1].Busbw, nil
}

// rshAgent is the command by which mpirun starts its daemons on other nodes, with the host and a shell command as
// arguments: what it prints is run there. It succeeds before, as mpirun's daemons leave the command's session too.
const rshAgent = "echo heddle-rsh"

// mpirun starts ranks from the first node.
func (n *Nodes) mpirun(ctx context.Context, c *Collective, nodes, env []string) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	hosts, byHost := make([]string, len(nodes)), map[string]string{}
	for i, node := range nodes {
		hosts[i], byHost[n.Hosts[node]] = n.Hosts[node]+":"+strconv.Itoa(c.Ranks), node
	}
	args := []string{
		"mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", rshAgent, "--mca", "plm_rsh_no_tree_spawn", "1",
		"--host", strings.Join(hosts, ","), "-np", strconv.Itoa(len(nodes) * c.Ranks), "--bind-to", "none",
	}
	for _, variable := range env {
		args = append(args, "-x", variable)
	}
	printed, out := io.Pipe()
	var daemons sync.WaitGroup
	daemons.Go(func() {
		for lines := bufio.NewReader(printed); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			host, command, _ := strings.Cut(strings.TrimPrefix(line, "heddle-rsh "), " ")
			if node, ok := byHost[host]; ok && strings.HasPrefix(line, "heddle-rsh ") {
				daemons.Go(func() {
					if _, err := n.Run(ctx, node, []string{"sh", "-c", command}); err != nil {
						cancel(err)
					}
				})
			}
		}
	})
	output, err := n.run(ctx, nodes[0], append(args, c.Args...), out)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	_ = out.Close()
	cancel(nil)
	daemons.Wait()
	return output, err
}

// torchrun runs the command on all nodes; the first one prints.
func (n *Nodes) torchrun(ctx context.Context, c *Collective, nodes, env []string) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outputs, faults := make([]string, len(nodes)), make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() {
			own := append([]string{
				"env", "MASTER_ADDR=" + n.Hosts[nodes[0]], "MASTER_PORT=" + strconv.Itoa(masterPort),
				"NNODES=" + strconv.Itoa(len(nodes)), "NODE_RANK=" + strconv.Itoa(i), "NPROC_PER_NODE=" + strconv.Itoa(c.Ranks),
				"PET_NNODES=" + strconv.Itoa(len(nodes)), "PET_NODE_RANK=" + strconv.Itoa(i),
				"PET_NPROC_PER_NODE=" + strconv.Itoa(c.Ranks), "PET_MASTER_ADDR=" + n.Hosts[nodes[0]],
				"PET_MASTER_PORT=" + strconv.Itoa(masterPort),
			}, env...)
			if outputs[i], faults[i] = n.Run(ctx, node, append(own, c.Args...)); faults[i] != nil {
				cancel() // The others would wait for it.
			}
		})
	}
	all.Wait()
	return outputs[0], errors.Join(faults...)
}
