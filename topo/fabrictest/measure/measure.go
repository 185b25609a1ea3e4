// Package measure runs the flows and collectives of a fabric test by the agents of its nodes.
package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/agent"
)

// Node is a node with an agent.
type Node struct {
	// Client has the transport to the agent, which it reaches at Address.
	Client  *http.Client
	Address string
	// Host is the node's address for other nodes.
	Host string
}

// Nodes runs programs on nodes, by their names.
type Nodes struct {
	Nodes map[string]Node
	// Seconds is the duration of a measurement of bandwidth, Iterations the number of reads of one of latency.
	Seconds, Iterations int
	// Args are more arguments for perftest.
	Args []string
}

const (
	// basePort is the first TCP port of perftest's servers, one for each HCA port of a node.
	basePort = 18600
	// limit is the time of one program of perftest beside the measurement itself.
	limit = 30 * time.Second
	// retry is the time between two attempts of a client whose server does not listen yet.
	retry = 200 * time.Millisecond
)

// ErrGone means that an agent does not answer: its node gave way to a job, or died.
var ErrGone = errors.New("the agent is gone")

// Round measures flows at the same time: the bandwidth of all, and then the latency.
func (n *Nodes) Round(ctx context.Context, ports []fabrictest.Port, flows []fabrictest.Flow) []fabrictest.Result {
	results := make([]fabrictest.Result, len(flows))
	for _, program := range []string{"ib_write_bw", "ib_read_lat"} {
		var all sync.WaitGroup
		for i, f := range flows {
			r := &results[i]
			if r.Flow = f; r.Failure != "" {
				continue
			}
			all.Go(func() { n.flow(ctx, ports, program, r) })
		}
		all.Wait()
	}
	return results
}

// flow measures one flow by one program.
func (n *Nodes) flow(ctx context.Context, ports []fabrictest.Port, program string, r *fabrictest.Result) {
	args := []string{"-D", strconv.Itoa(n.Seconds), "--report_gbits", "-s", "65536"}
	if program == "ib_read_lat" {
		args = []string{"-n", strconv.Itoa(n.Iterations), "-s", "8"}
	}
	output, err := n.perftest(ctx, ports, r.Flow, append([]string{program}, slices.Concat(args, n.Args)...))
	value := 0.0
	if err == nil {
		value, err = fabrictest.ParsePerftest(output)
	}
	switch {
	case err != nil:
		r.Failure, r.Gone = program+": "+err.Error(), n.gone(ctx, ports[r.From].Node, ports[r.To].Node)
	case program == "ib_read_lat":
		r.Latency = value
	case value == 0: // By duration, perftest succeeds without a single write.
		r.Failure = program + ": no data arrived"
	default:
		r.Gbps = value
	}
}

// gone returns the first of the nodes whose agent does not answer: the other end of its flows fails.
func (n *Nodes) gone(ctx context.Context, nodes ...string) string {
	for _, node := range nodes {
		if _, err := n.Run(ctx, node, nil, nil); errors.Is(err, ErrGone) {
			return node
		}
	}
	return ""
}

// perftest runs a server at the end of a flow and a client at its start, and returns the client's output.
func (n *Nodes) perftest(
	ctx context.Context, ports []fabrictest.Port, f fabrictest.Flow, args []string,
) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+time.Duration(n.Seconds)*time.Second)
	defer cancel()
	from, to := &ports[f.From], &ports[f.To]
	side := func(p *fabrictest.Port) []string {
		return slices.Concat(args, []string{
			"-d", p.HCA, "-i", strconv.Itoa(int(p.Number)), "-p", strconv.Itoa(basePort + f.To%1000),
		})
	}
	type ended struct {
		output string
		err    error
	}
	server := make(chan ended, 1)
	go func() {
		output, err := n.Run(ctx, to.Node, side(to), nil)
		server <- ended{output, err}
	}()
	client := append(side(from), n.Nodes[to.Node].Host)
	for {
		output, err := n.Run(ctx, from.Node, client, nil)
		if err == nil {
			<-server // The next program listens on its port.
			return output, nil
		}
		if !strings.Contains(output, "Couldn't connect") {
			return output, err
		}
		select {
		case <-time.After(retry):
		case s := <-server: // It ended without a client.
			if s.err != nil {
				return s.output, s.err
			}
			return output, err
		case <-ctx.Done():
			return output, err
		}
	}
}

// reason returns why a program failed: its only lines, or the last of many. perftest keeps its header until its end:
// its errors come first.
func reason(output string) string {
	output, _, perftest := strings.Cut(output, "\n-----")
	lines := strings.Split(strings.TrimSpace(output), "\n")
	if perftest || len(lines) <= 3 {
		return strings.Join(strings.Fields(strings.Join(lines, "; ")), " ")
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// Run runs a program on a node and returns its output. The error of a program that fails ends with its reason.
func (n *Nodes) Run(ctx context.Context, node string, args, env []string) (string, error) {
	at := n.Nodes[node]
	var out bytes.Buffer
	err := agent.Run(ctx, at.Client, at.Address, &agent.Command{Args: args, Env: env}, &out)
	exit, failed := errors.AsType[*agent.ExitError](err)
	switch {
	case failed:
		return out.String(), fmt.Errorf("node %s: %w: %s", node, exit, reason(out.String()))
	case err != nil && ctx.Err() != nil:
		return out.String(), fmt.Errorf("node %s: no result in time", node)
	case err != nil:
		return out.String(), fmt.Errorf("node %s: %w: %w", node, ErrGone, err)
	}
	return out.String(), nil
}
