//go:build linux

package vm

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Bed describes guests on networks of their own: one per rail, and one for control, on which the host reaches a port of
// each guest. The guests have no other way to the host.
type Bed struct {
	// Init is the static program that each guest runs; it learns its number by [EnvNode].
	Init string
	// Root and Files are folders of the host that the guests mount read-only by 9p, with the tags [TagRoot] and
	// [TagFiles].
	Root, Files  string
	Nodes, Rails int
}

const (
	// EnvNode has the number of a guest in its bed, from 0; EnvRails the number of rails.
	EnvNode  = "HEDDLE_NODE"
	EnvRails = "HEDDLE_RAILS"
	// TagRoot and TagFiles name the folders of a [Bed] in its guests.
	TagRoot  = "root"
	TagFiles = "files"
	// ExecPort is the TCP port of each guest that the host reaches: its init calls [Serve].
	ExecPort = "18500"
)

// RailAddress returns a node's IPv4 address on a rail, which is ethN of the guest.
func RailAddress(rail, node int) string { return fmt.Sprintf("10.77.%d.%d", rail, 10+node) }

// ControlAddress returns a node's IPv4 address on the control network, the last network device of the guest.
// QEMU's gateway to the host requires this network.
func ControlAddress(node int) string { return fmt.Sprintf("10.0.2.%d", 20+node) }

// Running is a started [Bed].
type Running struct {
	// Ended gets the number of each guest that ends.
	Ended chan int
	// addresses are the guests' ExecPorts, seen from the host.
	addresses []string
	consoles  []*console
	networks  []*ethernet
	cancel    context.CancelFunc
	guests    sync.WaitGroup
}

// Start boots the guests and returns without waiting for them.
func (g *Guest) Start(ctx context.Context, b *Bed) (_ *Running, err error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &Running{cancel: cancel, Ended: make(chan int, b.Nodes)}
	for range b.Rails + 1 {
		r.networks = append(r.networks, &ethernet{stations: map[[6]byte]*ethernetPort{}})
	}
	defer func() {
		if err != nil {
			r.Stop()
		}
	}()
	if r.addresses, err = freeAddresses(ctx, b.Nodes); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "heddle-vm-")
	if err != nil {
		return nil, fmt.Errorf("guests: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = os.RemoveAll(dir) })
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(initramfs, b.Init, g.Modules); err != nil {
		return nil, err
	}
	for node := range b.Nodes {
		args := append(g.machine(initramfs, fmt.Sprintf("%s=%d", EnvNode, node), fmt.Sprintf("%s=%d", EnvRails, b.Rails)),
			"-virtfs", "local,readonly=on,security_model=none,mount_tag="+TagRoot+",path="+b.Root,
			"-virtfs", "local,readonly=on,security_model=none,mount_tag="+TagFiles+",path="+b.Files)
		if err := r.boot(ctx, node, args); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// boot starts one guest with a network device on each network. The first has the gateway to the host as well.
func (r *Running) boot(ctx context.Context, node int, args []string) error {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	defer func() {
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
	}()
	control := len(r.networks) - 1
	for i := range r.networks {
		if err := r.plug(cmd, i, fmt.Sprintf("n%d", i)); err != nil {
			return err
		}
		device := fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:%02x:%02x,romfile=", i, i, node)
		if i != control {
			device += ",host_mtu=9000" // Emulation is slow for each packet.
		}
		cmd.Args = append(cmd.Args, "-device", device)
	}
	if node == 0 {
		if err := r.plug(cmd, control, "gateway"); err != nil {
			return err
		}
		cmd.Args = append(cmd.Args, "-netdev", r.gateway(),
			"-netdev", "hubport,id=h0,hubid=0,netdev=user", "-netdev", "hubport,id=h1,hubid=0,netdev=gateway")
	}
	out := &console{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.consoles = append(r.consoles, out)
	started := make(chan error)
	r.guests.Go(func() {
		runtime.LockOSThread() // Pdeathsig is bound to the thread that starts the child.
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			fmt.Fprintln(out, "QEMU:", cmd.ProcessState)
			r.Ended <- node
		}
	})
	if err := <-started; err != nil {
		return fmt.Errorf("guest %d: %w", node, err)
	}
	return nil
}

// plug gives a QEMU a port of a network.
func (r *Running) plug(cmd *exec.Cmd, network int, netdev string) error {
	end, err := r.networks[network].connect()
	if err != nil {
		return err
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, end)
	cmd.Args = append(cmd.Args, "-netdev", fmt.Sprintf("socket,id=%s,fd=%d", netdev, 2+len(cmd.ExtraFiles)))
	return nil
}

// gateway returns QEMU's own network stack, which forwards ports of the host to the guests. It is alone on a port of
// the control network, since it answers whatever it sees.
func (r *Running) gateway() string {
	words := []string{"user,id=user,restrict=on"}
	for node, address := range r.addresses {
		words = append(words, fmt.Sprintf("hostfwd=tcp:%s-%s:%s", address, ControlAddress(node), ExecPort))
	}
	return strings.Join(words, ",")
}

// Consoles returns what the guests and QEMU wrote.
func (r *Running) Consoles() string {
	var all strings.Builder
	for node, c := range r.consoles {
		fmt.Fprintf(&all, "node %d:\n%s", node, c)
	}
	return all.String()
}

// Stop ends the guests.
func (r *Running) Stop() {
	r.cancel()
	r.guests.Wait()
	for _, network := range r.networks {
		network.close()
	}
}

// freeAddresses returns addresses of the host on which nothing listens. QEMU cannot report a port that it chose.
func freeAddresses(ctx context.Context, n int) ([]string, error) {
	var addresses []string
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("ports of the guests: %w", err)
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses, nil
}

// console keeps the output of a guest.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(b)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.ReplaceAll(c.text.String(), "\r", "")
}
