//go:build !linux

package rdma

import "github.com/heddle-dev/heddle/api/machine"

// CrossCheck has nothing to ask on systems without RDMA.
func (r Reader) CrossCheck([]machine.HCA) []machine.Skipped { return nil }
