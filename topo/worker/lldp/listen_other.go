//go:build !linux

package lldp

import "errors"

// Listen exists on Linux only.
func Listen(string) (Conn, error) { return nil, errors.ErrUnsupported }
