//go:build !linux

package lldp

import (
	"errors"
	"os"
)

func link(string) (index int, up bool, err error) { return 0, false, errors.ErrUnsupported }

func listen(int) (*os.File, error) { return nil, errors.ErrUnsupported }
