// Command heddle-fabric-agent runs the programs of `heddle fabric test` in a pod of the user's image, which an init
// container copies it to. It starts no program unless a client has the key of the test.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/heddle-dev/heddle/topo/fabrictest/agent"
)

const usage = `usage: heddle-fabric-agent install DIR        copy this program
       heddle-fabric-agent serve ADDRESS      run programs for clients with the key
       heddle-fabric-agent rsh HOST COMMAND...
              run a shell command at the agent of another node, for plm_rsh_agent of Open MPI
The directory in HEDDLE_FABRIC_KEY has the key: tls.crt and tls.key.
HEDDLE_FABRIC_PORT is the port of the agents of other nodes`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle-fabric-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	switch {
	case len(args) == 2 && args[0] == "install":
		return install(args[1])
	case len(args) == 2 && args[0] == "serve":
		config, err := agent.ReadKey(os.Getenv("HEDDLE_FABRIC_KEY"))
		if err != nil {
			return err
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", args[1])
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		return agent.Serve(ctx, listener, config)
	case len(args) > 2 && args[0] == "rsh":
		config, err := agent.ReadKey(os.Getenv("HEDDLE_FABRIC_KEY"))
		if err != nil {
			return err
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		// As rsh does: the words are for a shell.
		command := &agent.Command{Args: []string{"/bin/sh", "-c", strings.Join(args[2:], " ")}}
		return agent.Run(ctx, client, net.JoinHostPort(args[1], os.Getenv("HEDDLE_FABRIC_PORT")), command, stdout)
	}
	return errors.New(usage)
}

// install copies this program to a directory.
func install(dir string) error {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	defer func() { _ = from.Close() }()
	//nolint:gosec // A program that any user of the pod may run.
	to, err := os.OpenFile(filepath.Join(dir, "heddle-fabric-agent"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if _, err := io.Copy(to, from); err != nil {
		return errors.Join(fmt.Errorf("install: %w", err), to.Close())
	}
	return to.Close()
}
