// Package measure runs the flows and collectives of a fabric test by programs on its nodes.
package measure

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// Executor runs programs on nodes. A node has a PID namespace of its own.
type Executor interface {
	// Exec runs a program on a node and copies its output. The program may go on after ctx ends.
	Exec(ctx context.Context, node string, command []string, out io.Writer) error
}

// Nodes runs measurements on nodes, by their names.
type Nodes struct {
	Executor
	// Hosts are the nodes' addresses for other nodes.
	Hosts map[string]string
	// Seconds is the duration of a measurement of bandwidth, Iterations the number of reads of one of latency.
	Seconds, Iterations int
	// Args are more arguments for perftest.
	Args []string
	// servers is the number of perftest's servers so far.
	servers atomic.Int32
}

const (
	// basePort is the first TCP port of perftest's servers, ports their number: one that was left behind keeps its own.
	basePort, ports = 18600, 10000
	// limit is the time of one program of perftest beside the measurement itself.
	limit = 30 * time.Second
	// latency is the program that measures a latency.
	latency = "ib_read_lat"
	// retry is the time between two attempts of a client whose server does not listen yet.
	retry = 200 * time.Millisecond
)

// Round measures flows at the same time: the bandwidth of all, and then the latency.
func (n *Nodes) Round(ctx context.Context, ports []fabrictest.Port, flows []fabrictest.Flow) []fabrictest.Result {
	results := make([]fabrictest.Result, len(flows))
	for _, program := range [][]string{
		{"ib_write_bw", "-D", strconv.Itoa(n.Seconds), "--report_gbits", "-s", "65536"},
		{latency, "-n", strconv.Itoa(n.Iterations), "-s", "8"},
	} {
		var all sync.WaitGroup
		for i, f := range flows {
			r := &results[i]
			if r.Flow = f; r.Failure != "" {
				continue
			}
			all.Go(func() { n.flow(ctx, &ports[f.From], &ports[f.To], program, r) })
		}
		all.Wait()
	}
	return results
}

// flow measures one flow by one program.
func (n *Nodes) flow(ctx context.Context, from, to *fabrictest.Port, program []string, r *fabrictest.Result) {
	output, err := n.perftest(ctx, from, to, slices.Concat(program, n.Args))
	value := 0.0
	if err == nil {
		value, err = fabrictest.ParsePerftest(output)
	}
	switch {
	case err != nil:
		r.Failure, r.Gone = program[0]+": "+err.Error(), n.gone(ctx, []string{"true"}, from.Node, to.Node)
	case program[0] == latency:
		r.Latency = value
	case value == 0: // By duration, perftest succeeds without a single write.
		r.Failure = program[0] + ": no data arrived"
	default:
		r.Gbps = value
	}
}

// gone runs a program on nodes, and returns one where that fails: it gave way to a job, or died. What runs there then
// is killed, or the other end of its flows fails, so an exit code says nothing about the fabric.
func (n *Nodes) gone(ctx context.Context, program []string, nodes ...string) string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	gone := make(chan string, len(nodes))
	var all sync.WaitGroup
	for _, node := range nodes {
		all.Go(func() {
			if n.Exec(ctx, node, program, io.Discard) != nil {
				gone <- node
			}
		})
	}
	all.Wait()
	close(gone)
	return <-gone
}

// perftest runs a server at the end of a flow and a client at its start, and returns the client's output.
func (n *Nodes) perftest(ctx context.Context, from, to *fabrictest.Port, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+time.Duration(n.Seconds)*time.Second)
	port := strconv.Itoa(basePort + int(n.servers.Add(1))%ports)
	side := func(p *fabrictest.Port) []string {
		return slices.Concat(args, []string{"-d", p.HCA, "-i", strconv.Itoa(int(p.Number)), "-p", port})
	}
	ended := make(chan struct{})
	var fault error
	go func() {
		defer close(ended)
		_, fault = n.Run(ctx, to.Node, side(to))
	}()
	defer func() {
		cancel()
		<-ended
	}()
	client := append(side(from), n.Hosts[to.Node])
	for {
		output, err := n.Run(ctx, from.Node, client)
		if err == nil {
			<-ended
		}
		if err == nil || !strings.Contains(output, "Couldn't connect") {
			return output, err
		}
		select {
		case <-time.After(retry):
		case <-ended: // Without a client.
			if fault != nil {
				err = fault
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
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, rsh+" ") })
	if perftest || len(lines) <= 3 {
		return strings.Join(strings.Fields(strings.Join(lines, "; ")), " ")
	}
	return strings.TrimSpace(lines[len(lines)-1])
}

// Run runs a program on a node and returns its output. The error of a program that fails ends with its reason.
func (n *Nodes) Run(ctx context.Context, node string, args []string) (string, error) {
	return n.run(ctx, node, args, io.Discard)
}

// run is Run, and copies the output as it comes. The program ends by the deadline of ctx, though it runs on after an
// earlier end.
func (n *Nodes) run(ctx context.Context, node string, args []string, also io.Writer) (string, error) {
	seconds := 0 // Without a limit.
	if deadline, ok := ctx.Deadline(); ok {
		seconds = 1 + int(time.Until(deadline).Seconds())
	}
	command := []string{"sh", "-c", `exec timeout -k 1 "$@" 2>&1`, "sh", strconv.Itoa(max(seconds, 0))}
	var out bytes.Buffer
	err := n.Exec(ctx, node, append(command, args...), io.MultiWriter(&out, also))
	switch {
	case err != nil && ctx.Err() != nil:
		return out.String(), fmt.Errorf("node %s: no result in time", node)
	case err != nil:
		return out.String(), fmt.Errorf("node %s: %w: %s", node, err, reason(out.String()))
	}
	return out.String(), nil
}
