package nvml

import (
	"errors"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// vgpu reads the host's driver version and branch from the configuration space
// of a virtual GPU, where the host's vGPU manager puts them. More than the first
// 64 bytes need privileges.
func vgpu(tree sysfs.FS, address string) (*machine.VGPU, error) {
	b, err := tree.Bytes("bus/pci/devices/"+address+"/config", 256)
	if err != nil {
		return nil, err
	}
	return parseVGPU(b)
}

// parseVGPU walks the capability list (PCI Local Bus Specification 3.0, 6.7)
// to the vendor-specific capability with the signature "VF", and its records
// to the one of type 0: ten bytes of version, ten of branch. The layout is the
// one that NVIDIA's gpu-feature-discovery reads (internal/vgpu).
func parseVGPU(config []byte) (*machine.VGPU, error) {
	const (
		status, capabilities = 0x06, 0x34
		hasCapabilities      = 0x10
		vendorSpecific       = 0x09
		field                = 10
	)
	if len(config) < 64 || config[status]&hasCapabilities == 0 {
		return nil, nil //nolint:nilnil // Not a virtual GPU is a value here.
	}
	// A list longer than 48 entries of four bytes is a loop.
	for at, hops := int(config[capabilities]), 0; at >= 0x40 && at+3 <= len(config) && hops < 48; hops++ {
		id, next, size := config[at], int(config[at+1]), int(config[at+2])
		if id != vendorSpecific {
			at = next
			continue
		}
		body := config[at:min(at+size, len(config))]
		if len(body) < 5 || body[3] != 'V' || body[4] != 'F' {
			at = next
			continue
		}
		for pos := 5; pos+2 <= len(body); {
			kind, length := body[pos], int(body[pos+1])
			if kind == 0 && pos+2+2*field <= len(body) {
				text := func(from int) string { return strings.TrimRight(string(body[from:from+field]), "\x00") }
				return &machine.VGPU{HostDriverVersion: text(pos + 2), HostDriverBranch: text(pos + 2 + field)}, nil
			}
			if length < 2 {
				break
			}
			pos += length
		}
		return nil, errors.New("vGPU capability without a host driver record")
	}
	return nil, nil //nolint:nilnil // Not a virtual GPU is a value here.
}
