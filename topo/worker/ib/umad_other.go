//go:build !linux

package ib

import "errors"

// OpenUMAD exists on Linux only.
func OpenUMAD(string) (*UMAD, error) { return nil, errors.ErrUnsupported }
