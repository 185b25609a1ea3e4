//go:build e2e && linux

package vm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/test/vm"
	"github.com/heddle-dev/heddle/topo/fabrictest"
	"github.com/heddle-dev/heddle/topo/fabrictest/measure"
)

const (
	nodes = 4
	rails = 2
)

// bed is a fabric of guests: each rail is one switch.
type bed struct {
	on    *measure.Nodes
	ports []fabrictest.Port
}

func nodeName(node int) string { return fmt.Sprintf("node-%d", node) }

// port is the index of a node's port on a rail.
func port(node, rail int) int { return node*rails + rail }

// startBed boots the guests and waits until they run programs.
func startBed(ctx context.Context, t *testing.T) *bed {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("not on this machine: gcc, for the program of MPI (install the package gcc)")
	}
	cache, err := vm.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	g, err := vm.Prepare(ctx, cache, t.Output())
	skipMissing(t, err)
	root, err := vm.Userland(ctx, cache, t.Output(), []string{"perftest", "iproute2", "openmpi-bin", "coreutils"}, "libopenmpi-dev")
	skipMissing(t, err)
	files := t.TempDir()
	// A link that the package's script would make.
	if err := os.Symlink("/usr/bin/mpirun.openmpi", filepath.Join(files, "mpirun")); err != nil {
		t.Fatal(err)
	}
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	command(ctx, t, "gcc", "-O1", "-o", filepath.Join(files, "all_reduce_perf"), "allreduce/allreduce.c",
		"-I", filepath.Join(libraries, "openmpi/include"), filepath.Join(libraries, "libmpi.so.40"),
		"-Wl,--unresolved-symbols=ignore-in-shared-libs")
	initProgram := filepath.Join(t.TempDir(), "init")
	command(ctx, t, "go", "build", "-ldflags", "-s -w", "-o", initProgram, "./node")
	running, err := g.Start(ctx, &vm.Bed{Init: initProgram, Root: root, Files: files, Nodes: nodes, Rails: rails})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		running.Stop()
		if t.Failed() {
			t.Log(running.Consoles())
		}
	})
	// GID 1 of an rxe device is of its IPv4 address. A slow link must have its queue empty before the sender's timeout.
	b := &bed{on: &measure.Nodes{
		Executor: running, Hosts: map[string]string{}, Seconds: 2, Iterations: 50,
		Args: []string{"-x", "1", "-F", "-u", "18", "-t", "16"},
	}}
	for node := range nodes {
		b.on.Hosts[nodeName(node)] = vm.ControlAddress(node)
		for rail := range rails {
			b.ports = append(b.ports, fabrictest.Port{
				Node: nodeName(node), HCA: fmt.Sprintf("rxe%d", rail), ID: fmt.Sprint(rail), Number: 1, Rail: int32(rail),
				Netdev: fmt.Sprintf("eth%d", rail), Leaf: fmt.Sprintf("leaf-%d", rail), Gbps: 0.97 * mbits / 1000,
			})
		}
	}
	for node := range nodes {
		b.await(ctx, t, node, running.Ended)
	}
	return b
}

func skipMissing(t *testing.T, err error) {
	t.Helper()
	if missing, ok := errors.AsType[*vm.MissingError](err); ok {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func command(ctx context.Context, t *testing.T, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(c.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
}

// await waits until a guest runs programs. A connection may hang if the guest is not on the network yet.
func (b *bed) await(ctx context.Context, t *testing.T, node int, ended <-chan int) {
	t.Helper()
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := b.on.Run(try, nodeName(node), []string{"true"})
		<-try.Done()
		cancel()
		if err == nil {
			return
		}
		select {
		case n := <-ended:
			t.Fatalf("node %d ended", n)
		case <-ctx.Done():
			t.Fatalf("node %d: %v: %v", node, ctx.Err(), err)
		default:
		}
	}
}
