//go:build linux

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
)

// frame is a part of a program's output, or its end.
type frame struct {
	Out   []byte `json:",omitempty"`
	Ended bool   `json:",omitempty"`
	// Fault is the error of a program that failed.
	Fault string `json:",omitempty"`
}

// frames writes output as frames.
type frames struct{ *json.Encoder }

func (f frames) Write(b []byte) (int, error) { return len(b), f.Encode(frame{Out: b}) }

// Serve runs the programs that [Running.Exec] asks for. A program goes on if its client leaves.
func Serve(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer conn.Close()
			var command []string
			if err := json.NewDecoder(conn).Decode(&command); err != nil || len(command) == 0 {
				return
			}
			out, end := frames{json.NewEncoder(conn)}, frame{Ended: true}
			c := exec.CommandContext(context.Background(), command[0], command[1:]...)
			c.Stdout = out
			if err := c.Run(); err != nil {
				end.Fault = err.Error()
			}
			_ = out.Encode(end)
		}()
	}
}

// Exec runs a program on a guest, by the name node-N, and copies its output.
func (r *Running) Exec(ctx context.Context, node string, command []string, out io.Writer) error {
	var number int
	if _, err := fmt.Sscanf(node, "node-%d", &number); err != nil {
		return fmt.Errorf("number of the node: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.addresses[number])
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := json.NewEncoder(conn).Encode(command); err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	for answer := json.NewDecoder(conn); ; {
		var f frame
		switch err := answer.Decode(&f); {
		case err != nil:
			return fmt.Errorf("exec: %w", err)
		case f.Ended && f.Fault != "":
			return errors.New(f.Fault)
		case f.Ended:
			return nil
		}
		if _, err := out.Write(f.Out); err != nil {
			return fmt.Errorf("exec: %w", err)
		}
	}
}
