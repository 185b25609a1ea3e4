//go:build !linux

package ib

import "errors"

// ErrNotInfiniBand means that a port carries no SMPs.
var ErrNotInfiniBand = errors.New("not an InfiniBand port")

// OpenUMAD exists on Linux only.
func OpenUMAD(string) (Transport, error) { return nil, errors.ErrUnsupported }
