package vm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Run boots the guest and waits for its outcome, at most spec.Timeout. An error
// means that nothing was learned: the files are not there, or ctx ended. What
// the guest did is in the Result, also if it died or hung.
func (g *Guest) Run(ctx context.Context, spec Spec) (Result, error) {
	dir, err := os.MkdirTemp("", "heddle-vm-")
	if err != nil {
		return Result{}, fmt.Errorf("guest: %w", err)
	}
	defer os.RemoveAll(dir)
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(initramfs, spec.TestBinary, g.Modules); err != nil {
		return Result{}, fmt.Errorf("guest: %w", err)
	}
	limit := cmp.Or(spec.Timeout, defaultTimeout)
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	output, code, err := boot(bounded, arguments(g.Kernel, initramfs, spec))
	result := Result{Output: strings.ReplaceAll(output, "\r", ""), Took: time.Since(began)}
	switch {
	case ctx.Err() != nil:
		return result, fmt.Errorf("guest: %w", context.Cause(ctx))
	case bounded.Err() != nil:
		result.Outcome = TimedOut
	case err != nil:
		return result, fmt.Errorf("guest: %w", err)
	default:
		result.Outcome = outcome(code)
	}
	result.Tests = testsOf(result.Output)
	return result, nil
}

// boot runs QEMU and returns what came from the serial line and from QEMU
// itself, and its exit code.
func boot(ctx context.Context, args []string) (output string, code int, err error) {
	// Pdeathsig is bound to the thread that starts the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	endWithUs(cmd)
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); ended {
		err = nil
	}
	return console.String(), cmd.ProcessState.ExitCode(), err
}

// What the guest writes to the port of isa-debug-exit. QEMU then exits with
// twice the value plus one (hw/misc/debugexit.c). Zero would be QEMU's own
// code for a failure, and could not be distinguished from it.
const (
	// DebugExitPort is the address, written through /dev/port.
	DebugExitPort = 0xf4
	// CodePassed and CodeFailed are the values.
	CodePassed = 0x10
	CodeFailed = 0x11
)

func outcome(exitCode int) Outcome {
	switch exitCode {
	case 2*CodePassed + 1:
		return Passed
	case 2*CodeFailed + 1:
		return Failed
	case 0:
		return Died
	}
	return NotStarted
}
