package measure

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/agent"
)

// perftest is a server or a client of perftest in sh: they meet at a fifo for each TCP port. A flow of mlx5_9 fails.
const perftest = `#!/bin/sh
for a; do case $last in -p) port=$a;; -d) device=$a;; esac; last=$a; done
at=$MEET/$port.${0##*/}
case $last in
host) test -p $at || { echo "Couldn't connect to host:$port"; exit 1; }; echo go > $at;;
*) mkfifo $at && read go < $at;;
esac
test $device != mlx5_9 || { echo "Completion with error at client"; exit 1; }
case $0 in
*_bw) echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'; echo " 65536 1007 0.00 388.12 0.7";;
*) echo ' #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]'; echo " 8 1000 1.92 4.96 1.96 1.97";;
esac
`

// mpirun prints its arguments as a line of results has them, and one result.
const mpirun = `#!/bin/sh
echo "$@" > $MEET/mpirun
echo "  1024  256  float  sum  -1  12.0  0.09  0.16  0  12.1  0.08  0.15  ${WRONG:-0}"
`

// bed starts an agent for each node, with the programs in its path.
func bed(t *testing.T, names ...string) (*Nodes, string) {
	t.Helper()
	dir, meet := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"ib_write_bw": perftest, "ib_read_lat": perftest, "mpirun": mpirun, "train": mpirun} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("MEET", meet)
	certificate, key, err := agent.NewKey(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	config, err := agent.Config(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	n := &Nodes{Nodes: map[string]Node{}, Seconds: 1, Iterations: 10}
	for _, name := range names {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- agent.Serve(ctx, l, config) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		n.Nodes[name] = Node{Client: client, Address: l.Addr().String(), Host: "host"}
	}
	return n, meet
}

func TestRound(t *testing.T) {
	n, _ := bed(t, "a", "b")
	n.Nodes["gone"] = Node{Client: http.DefaultClient, Address: "127.0.0.1:1", Host: "host"}
	ports := []fabrictest.Port{
		{Node: "a", HCA: "mlx5_0", Number: 1},
		{Node: "b", HCA: "mlx5_0", Number: 1},
		{Node: "a", HCA: "mlx5_9", Number: 1},
		{Node: "b", HCA: "mlx5_1", Number: 1},
		{Node: "gone", HCA: "mlx5_0", Number: 1},
	}
	got := n.Round(t.Context(), ports, []fabrictest.Flow{{From: 0, To: 1}, {From: 2, To: 3}, {From: 4, To: 4}})
	if got[1].Gone != "" || !strings.Contains(got[1].Failure, "exit status 1: Completion with error") {
		t.Errorf("a flow that fails: %+v", got[1])
	}
	if got[2].Gone != "gone" {
		t.Errorf("a flow of a node that is gone: %+v", got[2])
	}
	want := fabrictest.Result{Flow: fabrictest.Flow{From: 0, To: 1}, Gbps: 388.12, Latency: 1.96}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestCollective(t *testing.T) {
	n, meet := bed(t, "a", "b")
	c := &Collective{Launcher: MPI, Args: []string{"all_reduce_perf", "-b", "8"}, Ranks: 8, Env: []string{"X=1"}, RSH: "agent rsh"}
	busbw, err := n.Collective(t.Context(), c, []string{"a", "b"}, []string{"NCCL_IB_HCA==mlx5_3"})
	if err != nil || busbw != 0.16 {
		t.Errorf("%v GB/s, %v", busbw, err)
	}
	args, err := os.ReadFile(filepath.Join(meet, "mpirun"))
	const want = "--allow-run-as-root --mca plm_rsh_agent agent rsh --mca plm_rsh_no_tree_spawn 1 --host host:8,host:8 " +
		"-np 16 --bind-to none -x NCCL_IB_HCA==mlx5_3 -x X=1 all_reduce_perf -b 8\n"
	if err != nil || string(args) != want {
		t.Errorf("mpirun %s, want %s (%v)", args, want, err)
	}
	c = &Collective{Launcher: Torchrun, Args: []string{"train"}, Ranks: 8}
	if busbw, err := n.Collective(t.Context(), c, []string{"a", "b"}, nil); err != nil || busbw != 0.16 {
		t.Errorf("torchrun: %v GB/s, %v", busbw, err)
	}
	if _, err := n.Collective(t.Context(), c, []string{"a", "b"}, []string{"WRONG=3"}); err == nil || !strings.Contains(err.Error(), "3 wrong values at size 1024") {
		t.Errorf("wrong values: %v", err)
	}
	n.Nodes["b"] = Node{Client: http.DefaultClient, Address: "127.0.0.1:1"}
	if _, err := n.Collective(t.Context(), c, []string{"a", "b"}, nil); !errors.Is(err, ErrGone) {
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
