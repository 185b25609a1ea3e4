package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabrictest"
)

// fabric stands in for nodes, whose addresses are their names with "host-". mlx5_9 fails; what runs on a node that is
// gone is killed first.
type fabric struct {
	mu      sync.Mutex
	servers map[string]chan struct{}
	killed  map[string]bool
	gone    string
	// ran has the programs without perftest, daemon is closed by mpirun's on b, and wrong is in the results.
	ran    []string
	daemon chan struct{}
	wrong  int
}

var errExit = errors.New("command terminated with exit code 1")

func (f *fabric) Exec(ctx context.Context, node string, command []string, out io.Writer) error {
	f.mu.Lock()
	killed := f.killed[node]
	f.killed[node] = node == f.gone
	f.mu.Unlock()
	switch {
	case killed:
		return errors.New("container not found")
	case node == f.gone:
		return errors.New("command terminated with exit code 137")
	case command[0] == "true":
		return nil
	}
	text, timeout := strings.CutPrefix(strings.Join(command, " "), `sh -c exec timeout -k 1 "$@" 2>&1 sh `)
	if timeout && strings.HasPrefix(command[5], "ib_") {
		return f.perftest(ctx, command[5:], out)
	}
	f.mu.Lock()
	f.ran = append(f.ran, node+": "+text)
	f.mu.Unlock()
	if !timeout {
		return nil
	}
	switch command[5] {
	case "sh":
		close(f.daemon)
		return nil
	case "mpirun":
		fmt.Fprint(out, "heddle-rsh host-x no node\nheddle-rsh host-b orted -mca plm rsh \nheddle-rsh")
		select {
		case <-f.daemon:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	fmt.Fprintf(out, "\n  1024  256  float  sum  -1  12.0  0.09  0.16  0  12.1  0.08  0.15  %d\n", f.wrong)
	return nil
}

// perftest is a server, or a client that finds it by its TCP port.
func (f *fabric) perftest(ctx context.Context, args []string, out io.Writer) error {
	value := func(flag string) string { return args[slices.Index(args, flag)+1] }
	port := value("-p")
	f.mu.Lock()
	server := f.servers[port]
	client := strings.HasPrefix(args[len(args)-1], "host-")
	if !client {
		if server != nil {
			f.mu.Unlock()
			return errors.New("the port is taken")
		}
		f.mu.Unlock()
		<-time.After(time.Second)
		f.mu.Lock()
		server = make(chan struct{})
		f.servers[port] = server
	}
	f.mu.Unlock()
	switch {
	case client && server == nil:
		fmt.Fprintln(out, "Couldn't connect to host:"+port)
		return errExit
	case client:
		close(server)
	default:
		select {
		case <-server:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch {
	case value("-d") == "mlx5_9":
		fmt.Fprintln(out, "Completion with error at client")
		return errExit
	case args[0] == "ib_write_bw":
		fmt.Fprintln(out, " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 1007 0.00 388.12 0.7")
	default:
		fmt.Fprintln(out, " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec]\n 8 1000 1.92 4.96 1.96 1.97")
	}
	return nil
}

func newNodes(names ...string) (*Nodes, *fabric) {
	f := &fabric{servers: map[string]chan struct{}{}, killed: map[string]bool{}, daemon: make(chan struct{})}
	n := &Nodes{Executor: f, Hosts: map[string]string{}, Seconds: 1, Iterations: 10}
	for _, name := range names {
		n.Hosts[name] = "host-" + name
	}
	return n, f
}

func TestRound(t *testing.T) { synctest.Test(t, testRound) }

func testRound(t *testing.T) {
	n, f := newNodes("a", "b", "gone")
	f.gone = "gone"
	ports := []fabrictest.Port{
		{Node: "a", HCA: "mlx5_0", Number: 1},
		{Node: "b", HCA: "mlx5_0", Number: 1},
		{Node: "a", HCA: "mlx5_9", Number: 1},
		{Node: "b", HCA: "mlx5_1", Number: 1},
		{Node: "gone", HCA: "mlx5_0", Number: 1},
	}
	got := n.Round(t.Context(), ports, []fabrictest.Flow{{From: 0, To: 1}, {From: 2, To: 3}, {From: 4, To: 4}})
	if got[1].Gone != "" || got[1].Failure != "ib_write_bw: node a: command terminated with exit code 1: Completion with error at client" {
		t.Errorf("a flow that fails: %+v", got[1])
	}
	if got[2].Gone != "gone" {
		t.Errorf("a flow of a node that is gone: %+v", got[2])
	}
	want := fabrictest.Result{Flow: fabrictest.Flow{From: 0, To: 1}, Gbps: 388.12, Latency: 1.96}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if len(f.servers) != 3 {
		t.Errorf("%d ports of 3 servers", len(f.servers))
	}
}

func TestMPI(t *testing.T) { synctest.Test(t, testMPI) }

func testMPI(t *testing.T) {
	n, f := newNodes("a", "b")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := &Collective{Launcher: MPI, Args: []string{"all_reduce_perf", "-b", "8"}, Ranks: 8}
	busbw, err := n.Collective(ctx, c, []string{"a", "b"})
	if err != nil || busbw != 0.16 {
		t.Errorf("%v GB/s, %v", busbw, err)
	}
	want := []string{
		"a: 61 mpirun --allow-run-as-root --mca plm_rsh_agent echo heddle-rsh --mca plm_rsh_no_tree_spawn 1 --host host-a:8,host-b:8 " +
			"-np 16 --bind-to none all_reduce_perf -b 8",
		"b: 61 sh -c orted -mca plm rsh ",
	}
	if diff := cmp.Diff(want, f.ran); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	f.gone, f.ran, f.daemon = "b", nil, make(chan struct{})
	if _, err := n.Collective(ctx, c, []string{"a", "b"}); !errors.Is(err, ErrGone) {
		t.Errorf("a node that is gone: %v", err)
	}
	if want := "a: sh -c kill -9 -1; true"; !slices.Contains(f.ran, want) {
		t.Errorf("after a failure ran %q", f.ran)
	}
}

func TestTorchrun(t *testing.T) {
	n, f := newNodes("a", "b")
	c := &Collective{Launcher: Torchrun, Args: []string{"train"}, Ranks: 8}
	if busbw, err := n.Collective(t.Context(), c, []string{"a", "b"}); err != nil || busbw != 0.16 {
		t.Errorf("%v GB/s, %v", busbw, err)
	}
	slices.Sort(f.ran)
	if words := strings.Fields(f.ran[1]); len(f.ran) != 2 || !strings.HasPrefix(f.ran[1], "b: 0 env ") || !strings.HasSuffix(f.ran[1], " train") ||
		!slices.Contains(words, "NODE_RANK=1") || !slices.Contains(words, "PET_MASTER_ADDR=host-a") || len(words) != 14 {
		t.Errorf("programs %q", f.ran)
	}
	f.wrong = 3
	if _, err := n.Collective(t.Context(), c, []string{"a", "b"}); err == nil || err.Error() != "3 wrong values at size 1024" {
		t.Errorf("wrong values: %v", err)
	}
	f.gone = "b"
	if _, err := n.Collective(t.Context(), c, []string{"a", "b"}); !errors.Is(err, ErrGone) {
		t.Errorf("a node that is gone: %v", err)
	}
}

func TestReason(t *testing.T) {
	for name, want := range map[string]string{
		"perftest-unreachable.txt": "Failed to modify QP 19 to RTR; Unable to Connect the HCA's through the link",
		"perftest-down.txt":        "Port number 1 state is Down; Couldn't set the link layer; Couldn't get context for the device",
		"mpi-allreduce.txt":        "#",
	} {
		text, err := os.ReadFile("../testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := reason(string(text)); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
