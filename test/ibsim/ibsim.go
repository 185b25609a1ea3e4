// Package ibsim runs ibsim, the InfiniBand fabric simulator of the subnet
// managers' authors, and connects to it: management datagrams over its sockets,
// moved cables over its console.
//
// It owns the life of one ibsim process and of its clients. It needs no root
// and no network namespace: every simulator has sockets of its own name.
package ibsim

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// MaxClients is how many clients ibsim 0.10 serves at once.
const MaxClients = 10

// Sim is a running simulator.
type Sim struct {
	name    string
	cmd     *exec.Cmd
	console io.WriteCloser
	output  *bufio.Reader
	// clients numbers them; ibsim expects process numbers.
	clients atomic.Uint32
	// slots bounds those connected at once; ibsim counts some twice while they
	// leave.
	slots chan struct{}
}

// Run starts ibsim on a fabric in a file of ibnetdiscover's form until a test ends, or skips the test
// where it is not installed. It is ready when Run returns.
func Run(tb testing.TB, netFile string) *Sim {
	tb.Helper()
	program, err := exec.LookPath("ibsim")
	if err != nil {
		tb.Skip("no ibsim (apt-get install ibsim-utils)")
	}
	s := &Sim{
		name: fmt.Sprintf("heddle-%d-%d", syscall.Getpid(), time.Now().UnixNano()), slots: make(chan struct{}, MaxClients-2),
	}
	// Room for 512 hosts of 8 HCAs; -s starts the network at once.
	s.cmd = exec.CommandContext(context.WithoutCancel(tb.Context()), program,
		"-s", "-N", "8192", "-S", "512", "-P", "60000", netFile)
	s.cmd.Env = append(s.cmd.Environ(), "IBSIM_SOCKNAME="+s.name)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.console, err = s.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	output, err := s.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	s.output = bufio.NewReader(output)
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.close)
	text, err := s.prompt()
	if err == nil {
		// The first prompt comes before the sockets; an answered command after.
		_, err = s.Command("Attached")
	}
	if err != nil {
		tb.Fatalf("ibsim on %s: %v\n%s", netFile, err, text)
	}
	return s
}

// prompt reads ibsim's output up to its prompt.
func (s *Sim) prompt() (string, error) {
	var text strings.Builder
	for !strings.HasSuffix(text.String(), "sim> ") {
		b, err := s.output.ReadByte()
		if err != nil {
			return text.String(), err
		}
		text.WriteByte(b)
	}
	return strings.TrimSuffix(text.String(), "sim> "), nil
}

// Command runs one command of ibsim's console and returns its output. What
// it changes is changed when this returns.
func (s *Sim) Command(format string, args ...any) (string, error) {
	line := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(s.console, line+"\n"); err != nil {
		return "", fmt.Errorf("ibsim: %s: %w", line, err)
	}
	text, err := s.prompt()
	if err != nil {
		return text, fmt.Errorf("ibsim: %s: %w", line, err)
	}
	if strings.Contains(text, "# ") {
		return text, fmt.Errorf("ibsim: %s: %s", line, strings.TrimSpace(text))
	}
	return text, nil
}

// Move pulls the cable out of a port of one node and puts it into another
// switch's port. Nodes are "H-" or "S-" and a GUID of 16 digits; an empty
// target leaves the cable out.
func (s *Sim) Move(node string, port int, to string, toPort int) error {
	if text, err := s.Command("Unlink %q[%d]", node, port); err != nil && !strings.Contains(text, "is not linked") {
		return err
	}
	if to == "" {
		return nil
	}
	_, err := s.Command("Link %q[%d] %q[%d]", node, port, to, toPort)
	return err
}

// Count sets a counter of a node's port, such as SymbolErrorCounter.
func (s *Sim) Count(node string, port int, counter string, n int) error {
	text, err := s.Command("PerformanceSet %q[%d] PortCounters.%s=%d", node, port, counter, n)
	if err == nil && !strings.Contains(text, "has been set") {
		err = fmt.Errorf("ibsim: %s", text)
	}
	return err
}

// Environ is what a program needs that is to see the fabric as host through
// ibsim's own library: opensm, ibnetdiscover. host is a node such as
// "H-946dae0300000000".
func (s *Sim) Environ(host string) []string {
	return []string{
		"LD_PRELOAD=/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
		"IBSIM_SOCKNAME=" + s.name, "SIM_HOST=" + host,
	}
}

// close ends the simulator.
func (s *Sim) close() {
	_, _ = io.WriteString(s.console, "Quit\n") // It may be dead already.
	_ = s.console.Close()
	_ = s.cmd.Wait() // It ends by a signal, or by its own way of leaving.
}
