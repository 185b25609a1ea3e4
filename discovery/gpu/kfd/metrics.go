package kfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// maxMetrics bounds gpu_metrics; the tables of all revisions have less.
const maxMetrics = 64 << 10

// unmanaged returns why a GPU's management firmware does not answer; empty if it does, or if the
// driver has no table for the GPU. gpu_metrics begins with the table's size, 16 bits in little
// endian (metrics_table_header in the kernel's kgd_pp_interface.h); reading it has the driver ask
// the firmware. One that hangs answers with these errors, or with ones in all bits, as a device
// that left the bus does.
func unmanaged(table []byte, err error) string {
	switch {
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ETIME), errors.Is(err, unix.ETIMEDOUT):
		return fmt.Sprintf("its management firmware does not answer: %v", err)
	case err != nil, len(table) == 0:
		return ""
	case len(table) < 4 || binary.LittleEndian.Uint16(table) == math.MaxUint16:
		return fmt.Sprintf("its management firmware does not answer: gpu_metrics has %d bytes and not a table", len(table))
	}
	return ""
}
