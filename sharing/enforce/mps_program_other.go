//go:build !linux

package enforce

import (
	"context"
	"errors"
	"syscall"
)

// errNoMPS means that the system has no MPS.
var errNoMPS = errors.New("MPS is on Linux only")

type child struct {
	pid  int
	done chan struct{}
	err  error
}

func (*child) signal(syscall.Signal) {}

func (*program) start(context.Context) (*child, error) { return nil, errNoMPS }

func (*program) send(context.Context, string) (string, error) { return "", errNoMPS }
