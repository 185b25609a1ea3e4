package measure

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// Launcher starts the ranks of a collective.
type Launcher string

// The launchers.
const (
	// MPI is Open MPI's mpirun, which reaches other nodes by their agents.
	MPI Launcher = "mpi"
	// Torchrun runs the command on all nodes with the variables that torchrun and torch.distributed read.
	Torchrun Launcher = "torchrun"
)

// Collective is a program that measures a collective, and prints as nccl-tests do.
type Collective struct {
	Launcher Launcher
	Args     []string
	// Ranks is the number of ranks of each node.
	Ranks int
	Env   []string
	// RSH is the command by which mpirun reaches other nodes.
	RSH string
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
	if err != nil {
		return 0, err
	}
	sizes, err := fabrictest.ParseCollective(output)
	if err != nil {
		return 0, err
	}
	for _, s := range sizes {
		if s.Wrong > 0 {
			return 0, fmt.Errorf("%d wrong values at size %d", s.Wrong, s.Bytes)
		}
	}
	return sizes[len(sizes)-1].Busbw, nil
}

// mpirun starts ranks from the first node.
func (n *Nodes) mpirun(ctx context.Context, c *Collective, nodes, env []string) (string, error) {
	hosts := make([]string, len(nodes))
	for i, node := range nodes {
		hosts[i] = n.Nodes[node].Host + ":" + strconv.Itoa(c.Ranks)
	}
	args := []string{
		"mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", c.RSH, "--mca", "plm_rsh_no_tree_spawn", "1",
		"--host", strings.Join(hosts, ","), "-np", strconv.Itoa(len(nodes) * c.Ranks), "--bind-to", "none",
	}
	for _, variable := range env {
		args = append(args, "-x", variable)
	}
	return n.Run(ctx, nodes[0], append(args, c.Args...), nil)
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
				"MASTER_ADDR=" + n.Nodes[nodes[0]].Host, "MASTER_PORT=" + strconv.Itoa(masterPort),
				"NNODES=" + strconv.Itoa(len(nodes)), "NODE_RANK=" + strconv.Itoa(i), "NPROC_PER_NODE=" + strconv.Itoa(c.Ranks),
				"PET_NNODES=" + strconv.Itoa(len(nodes)), "PET_NODE_RANK=" + strconv.Itoa(i),
				"PET_NPROC_PER_NODE=" + strconv.Itoa(c.Ranks), "PET_MASTER_ADDR=" + n.Nodes[nodes[0]].Host,
				"PET_MASTER_PORT=" + strconv.Itoa(masterPort),
			}, env...)
			if outputs[i], faults[i] = n.Run(ctx, node, c.Args, own); faults[i] != nil {
				cancel() // The others would wait for it.
			}
		})
	}
	all.Wait()
	return outputs[0], errors.Join(faults...)
}
