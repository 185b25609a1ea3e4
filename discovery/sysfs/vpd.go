package sysfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
)

// maxVPD bounds a read of vital product data. The kernel fetches it four bytes
// at a time through the device's firmware, some 100 µs each; an mlx5's ends
// after about 500.
const maxVPD = 1024

// VPD is the part of a function's vital product data that shows what it is for.
type VPD struct {
	// V3 is the vendor-specific field that all functions of one adapter
	// share, the DMA function beside the GPU included (rdma-core
	// kernel-boot/rdma_topo).
	V3 string
	// SwitchManagement marks the management function of an NVSwitch, by the
	// words that NVIDIA's fabric manager looks for: SW_MNG.
	SwitchManagement bool
}

// VPD reads and parses a PCI function's vital product data. It is slow
// (milliseconds) and needs privileges; callers keep the result.
func (f FS) VPD(address string) (VPD, error) {
	b, err := f.Bytes(pciDevices+address+"/vpd", maxVPD)
	if err != nil {
		return VPD{}, err
	}
	return parseVPD(b)
}

// parseVPD reads the large resources of PCI Local Bus Specification 3.0,
// appendix I: the identifier string, then read-only and read-write keywords.
// What was understood before a fault is returned with the error.
func parseVPD(b []byte) (VPD, error) {
	vpd := VPD{SwitchManagement: bytes.Contains(b, []byte("SW_MNG"))}
	const (
		largeReadOnly  = 0x90
		largeReadWrite = 0x91
		smallEnd       = 0x78
	)
	for len(b) > 0 && b[0] != smallEnd {
		if b[0]&0x80 == 0 {
			size := 1 + int(b[0]&7)
			if size > len(b) {
				return vpd, errors.New("vital product data: a small resource is cut off")
			}
			b = b[size:]
			continue
		}
		if len(b) < 3 {
			return vpd, errors.New("vital product data: a large resource is cut off")
		}
		tag, size := b[0], int(binary.LittleEndian.Uint16(b[1:]))
		b = b[3:]
		body := b[:min(size, len(b))]
		b = b[len(body):]
		if tag == largeReadOnly || tag == largeReadWrite {
			if v3 := keyword(body, "V3"); v3 != "" {
				vpd.V3 = v3
			}
		}
	}
	return vpd, nil
}

// keyword finds a field: two letters, one byte of length, the value.
func keyword(b []byte, name string) string {
	for len(b) >= 3 {
		size := int(b[2])
		value := b[3:min(3+size, len(b))]
		if string(b[:2]) == name {
			return strings.TrimRight(string(value), "\x00 ")
		}
		b = b[3+len(value):]
	}
	return ""
}
