// Command mpscontrol stands in for nvidia-cuda-mps-control in tests. Started as a
// daemon (-f) it listens in its pipe directory and keeps one server, a process
// apart; without -f it carries a line from its standard input there. It
// obeys files in the directory of its pipe directory: "reject" keeps it from
// starting, "hang" from answering, "stubborn" from quitting. What the real one
// does beyond that it does not.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	pipe := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(pipe), name))
		return err == nil
	}
	socket := filepath.Join(pipe, "control")
	switch {
	case len(args) == 0:
		return client(socket)
	case args[0] == "server":
		signal.Ignore(syscall.SIGTERM)
		select {}
	case has("reject"):
		fmt.Fprintln(os.Stderr, "no CUDA device")
		return 1
	}
	_ = os.Remove(socket)
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return 1
	}
	d := &daemon{has: has, log: filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "control.log"), percent: "100.0"}
	d.record("start %s on %s", strings.Join(args, " "), os.Getenv("CUDA_VISIBLE_DEVICES"))
	if has("stubborn") {
		signal.Ignore(syscall.SIGTERM)
	}
	server, err := os.StartProcess(os.Args[0], []string{os.Args[0], "server"}, &os.ProcAttr{Env: os.Environ()})
	if err != nil {
		return 1
	}
	d.server = server.Pid
	_ = os.WriteFile(filepath.Join(filepath.Dir(pipe), "pids"), fmt.Appendf(nil, "%d %d", os.Getpid(), server.Pid), 0o600)
	for {
		c, err := listener.Accept()
		if err != nil {
			return 0
		}
		go d.serve(c)
	}
}

func client(socket string) int {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	c, err := new(net.Dialer).DialContext(context.Background(), "unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stdout, "Cannot find MPS control daemon process")
		return 1
	}
	fmt.Fprint(c, line)
	_, _ = io.Copy(os.Stdout, c)
	return 0
}

type daemon struct {
	has    func(string) bool
	log    string
	server int

	mu      sync.Mutex
	percent string
}

func (d *daemon) record(format string, args ...any) {
	f, err := os.OpenFile(d.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintf(f, format+"\n", args...)
		_ = f.Close()
	}
}

func (d *daemon) serve(c net.Conn) {
	defer c.Close()
	line, _ := bufio.NewReader(c).ReadString('\n')
	words := strings.Fields(line)
	if len(words) == 0 || d.has("hang") {
		select {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch words[0] {
	case "get_default_active_thread_percentage":
		fmt.Fprintln(c, d.percent)
		return
	case "get_server_list":
		fmt.Fprintln(c, d.server)
		return
	case "set_default_active_thread_percentage":
		d.percent = words[1] + ".0"
	}
	d.record("%s", strings.ReplaceAll(strings.TrimSpace(line), strconv.Itoa(d.server), "SERVER"))
	if words[0] == "quit" && !d.has("stubborn") {
		// The real one ends its servers.
		_ = syscall.Kill(d.server, syscall.SIGKILL)
		os.Exit(0) //nolint:gocritic // Nobody waits for the lock of a process that has ended.
	}
}
