package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ending is how long a program and its children may hold their output after the program's end.
const ending = 2 * time.Second

// run runs a command in a process group of its own, which is killed when ctx ends.
func run(ctx context.Context, command *Command, out io.Writer) error {
	if len(command.Args) == 0 {
		return errors.New("the command has no program")
	}
	c := exec.CommandContext(ctx, command.Args[0], command.Args[1:]...) //nolint:gosec // The client has the key.
	c.Stdout, c.Stderr, c.WaitDelay = out, out, ending
	c.Env = append(os.Environ(), command.Env...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %s", command.Args[0], strings.ReplaceAll(err.Error(), "\n", " "))
	}
	return nil
}
