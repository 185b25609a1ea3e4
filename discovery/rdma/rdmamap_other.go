//go:build !linux

package rdma

import "github.com/heddle-dev/heddle/api/machine"

// askRDMAMap has nothing to ask on systems without RDMA.
func (r *Reader) askRDMAMap([]machine.HCA) []machine.Skipped { return nil }
