//go:build linux

package vm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// payload finds the compressed kernel inside a bzImage, by the fields of the
// boot protocol 2.08 and later (Documentation/arch/x86/boot.rst), and the size
// of what it unpacks to, which the kernel's build appends.
func payload(image []byte) (data []byte, size int, err error) {
	const (
		setupSectors  = 0x1f1
		magic         = 0x202
		version       = 0x206
		payloadOffset = 0x248
		payloadLength = 0x24c
		headerEnd     = 0x250
	)
	if len(image) < headerEnd || string(image[magic:magic+4]) != "HdrS" {
		return nil, 0, errors.New("no bzImage: the header's magic is not there")
	}
	if v := binary.LittleEndian.Uint16(image[version:]); v < 0x208 {
		return nil, 0, fmt.Errorf("boot protocol %#x is older than 0x208", v)
	}
	sectors := int(image[setupSectors])
	if sectors == 0 {
		sectors = 4
	}
	start := (sectors+1)*512 + int(binary.LittleEndian.Uint32(image[payloadOffset:]))
	end := start + int(binary.LittleEndian.Uint32(image[payloadLength:]))
	if end > len(image) || end-start < 8 {
		return nil, 0, fmt.Errorf("the payload (%d to %d) is outside the image of %d bytes", start, end, len(image))
	}
	return image[start : end-4], int(binary.LittleEndian.Uint32(image[end-4:])), nil
}

// unpackKernel returns the ELF inside a bzImage.
func unpackKernel(ctx context.Context, image []byte) ([]byte, error) {
	data, size, err := payload(image)
	if err != nil {
		return nil, err
	}
	elf, err := decompress(ctx, data)
	if err != nil {
		return nil, err
	}
	if len(elf) != size || !bytes.HasPrefix(elf, []byte("\x7fELF")) {
		return nil, fmt.Errorf("the payload unpacks to %d bytes and no ELF of %d", len(elf), size)
	}
	return elf, nil
}

// decompress unpacks what Debian packs kernels and modules with; data that is
// not packed comes back as it is.
func decompress(ctx context.Context, data []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(data, []byte("\xfd7zXZ\x00")):
		return filter(ctx, data, "xz", "-dc")
	case bytes.HasPrefix(data, []byte("\x28\xb5\x2f\xfd")):
		return filter(ctx, data, "zstd", "-dcq")
	case bytes.HasPrefix(data, []byte("\x7fELF")):
		return data, nil
	}
	return nil, fmt.Errorf("neither xz nor zstd: it begins with % x", data[:min(len(data), 6)])
}

func filter(ctx context.Context, data []byte, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(data), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
