package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// content is what one pass over a kernel package found.
type content struct {
	// image is the bzImage.
	image []byte
	// modules are the ELFs of the modules asked for; all names every module.
	modules map[string][]byte
	all     map[string]bool
}

// unpackPackage writes the kernel and the modules of a package into dir:
// modules/NN_name.ko in the order in which they load, then vmlinux.
func unpackPackage(ctx context.Context, deb, dir string) error {
	wanted := append(roots(), expected()...)
	found := content{modules: map[string][]byte{}, all: map[string]bool{}}
	var names []string
	for {
		if err := readPackage(ctx, deb, wanted, &found); err != nil {
			return err
		}
		deps := map[string][]string{}
		for name, data := range found.modules {
			list, err := needs(data)
			if err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
			deps[name] = list
		}
		var missing []string
		names, missing = order(roots(), deps)
		if wanted = present(missing, found.all); len(wanted) == 0 {
			break
		}
	}
	if found.modules["rdma_rxe"] == nil || found.image == nil {
		return errors.New("the package has no rdma_rxe or no kernel image")
	}
	kernel, err := unpackKernel(ctx, found.image)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "modules"), 0o755); err != nil {
		return err
	}
	for i, name := range names {
		file := filepath.Join(dir, "modules", fmt.Sprintf("%02d_%s.ko", i, name))
		if err := os.WriteFile(file, found.modules[name], 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, kernelFile), kernel, 0o644)
}

// present drops the modules that the package does not have: they are built in.
func present(names []string, all map[string]bool) []string {
	var list []string
	for _, name := range names {
		if all[name] {
			list = append(list, name)
		}
	}
	return list
}

// readPackage adds the wanted modules, and the kernel's image, to found.
func readPackage(ctx context.Context, deb string, wanted []string, found *content) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := readTar(ctx, stdout, wanted, found)
	if readErr != nil {
		_ = cmd.Process.Kill() // A child process without a reader.
	}
	if err := errors.Join(readErr, ignoreIf(readErr != nil, cmd.Wait())); err != nil {
		return fmt.Errorf("dpkg-deb: %w %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

func readTar(ctx context.Context, r io.Reader, wanted []string, found *content) error {
	want := map[string]bool{}
	for _, name := range wanted {
		want[name] = true
	}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := moduleName(header.Name)
		found.all[name] = true
		isImage := strings.HasPrefix(filepath.Base(header.Name), "vmlinuz-")
		if !isImage && !want[name] {
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if isImage {
			found.image = data
			continue
		}
		if found.modules[name], err = decompress(ctx, data); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
	}
}
