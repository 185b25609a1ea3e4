//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// roots are the modules that the guests use. No module depends on crc32_generic,
// but rdma_rxe asks the crypto layer for "crc32" when a link is added and fails
// with ENOENT without it.
func roots() []string {
	return []string{
		"virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "ib_umad", "rdma_ucm", "bonding", "dummy",
		"9p", "9pnet_virtio", "sch_tbf", "sch_netem",
	}
}

// rootsKey distinguishes kernels in the cache by their modules.
func rootsKey() string {
	return fmt.Sprintf("_%08x", crc32.ChecksumIEEE([]byte(strings.Join(roots(), " "))))
}

// unpackPackage writes the kernel and the modules of a package into dir:
// modules/NN_name.ko in the order in which they load, since finit_module resolves
// nothing, then vmlinux.
func unpackPackage(ctx context.Context, deb, dir string) error {
	root := dir + ".deb"
	if err := run(ctx, "dpkg-deb", "-x", deb, root); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("the package has %d kernel images", len(images))
	}
	modules, err := modulesOf(ctx, root, strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}
	for i, file := range modules {
		name, _, _ := strings.Cut(filepath.Base(file), ".")
		to := filepath.Join(dir, "modules", fmt.Sprintf("%02d_%s.ko", i, name))
		if err := unpackFile(ctx, file, to, decompress); err != nil {
			return err
		}
	}
	return unpackFile(ctx, images[0], filepath.Join(dir, kernelFile), unpackKernel)
}

// modulesOf lists the files of the roots and of all modules that they need, each
// after those. A root that a kernel does not have is built into it.
func modulesOf(ctx context.Context, root, version string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(root, "lib")); err != nil { // A merged /usr.
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return nil, err
		}
	}
	if err := run(ctx, "depmod", "-b", root, version); err != nil {
		return nil, err
	}
	var files []string
	for _, module := range roots() {
		out, err := exec.CommandContext(ctx, "modprobe", "-d", root, "-S", version, "--show-depends", module).Output()
		if err != nil && module == "rdma_rxe" {
			return nil, errors.New("the package has no rdma_rxe")
		}
		for line := range strings.Lines(string(out)) {
			words := strings.Fields(line)
			if len(words) > 1 && words[0] == "insmod" && !slices.Contains(files, words[1]) {
				files = append(files, words[1])
			}
		}
	}
	return files, nil
}

// unpackFile writes what unpack makes of a file.
func unpackFile(ctx context.Context, from, to string, unpack func(context.Context, []byte) ([]byte, error)) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if data, err = unpack(ctx, data); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(from), err)
	}
	return os.WriteFile(to, data, 0o644)
}

func run(ctx context.Context, tool string, args ...string) error {
	if out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", tool, err, strings.TrimSpace(string(out)))
	}
	return nil
}
