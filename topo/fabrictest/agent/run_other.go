//go:build !linux

package agent

import (
	"context"
	"errors"
	"io"
)

func run(context.Context, *Command, io.Writer) error { return errors.ErrUnsupported }
