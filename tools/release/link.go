package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// linker links programs into a directory for each architecture. A program that is current
// there is not linked again, since Go finds its build ID in the file.
type linker struct {
	root, dir, version string
}

// newLinker takes a directory that lasts and is locked until end is called, or makes one
// for this run alone.
func newLinker(ctx context.Context, root, dir, version string) (l *linker, end func(), err error) {
	if root, err = filepath.Abs(root); err != nil {
		return nil, nil, err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "heddle-programs-*"); err != nil {
			return nil, nil, err
		}
		return &linker{root, dir, version}, func() { _ = os.RemoveAll(dir) }, nil
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = lock.Close() }
	if err := flock(ctx, lock); err != nil {
		end()
		return nil, nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return &linker{root, dir, version}, end, nil
}

func flock(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func (l *linker) program(arch, name string) string { return filepath.Join(l.dir, arch, name) }

// withHook are programs, and the second program where an image of one has that.
func withHook(names []string) []string {
	if slices.Contains(names, node) {
		return append(slices.Clone(names), mountsHook)
	}
	return names
}

// link links programs and what their images have beside them. Those of the main module come
// out of one build, which looks at the module once; schedulers are modules of their own.
func (l *linker) link(ctx context.Context, arch string, names []string) error {
	if err := os.MkdirAll(filepath.Join(l.dir, arch), 0o755); err != nil {
		return err
	}
	var together []string
	for _, name := range withHook(names) {
		folder := filepath.Join("cmd", name)
		if name == volcano {
			folder = "cmd/heddle-" + volcano
		}
		_, err := os.Stat(filepath.Join(l.root, folder, "go.mod"))
		switch {
		case name == mountsHook: // It runs on the node too, where no C library is known.
			err = l.build(ctx, arch, "0", ".", l.program(arch, name), "./"+folder)
		case err == nil:
			err = l.build(ctx, arch, "1", folder, l.program(arch, name), ".")
		default:
			together, err = append(together, "./"+folder), nil
		}
		if err != nil {
			return fmt.Errorf("%s for %s: %w", name, arch, err)
		}
	}
	if len(together) == 0 {
		return nil
	}
	if err := l.build(ctx, arch, "1", ".", l.program(arch, "")+"/", together...); err != nil {
		return fmt.Errorf("%s for %s: %w", strings.Join(names, ", "), arch, err)
	}
	return nil
}

// build runs go build in a folder. NVML's functions are bound when called (-z lazy), since
// older drivers lack some.
func (l *linker) build(ctx context.Context, arch, cgo, folder, out string, packages ...string) error {
	cc, err := compiler(arch)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{
		"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -X main.version=" + l.version + " -extldflags=-Wl,-z,lazy,--build-id=none", "-o", out,
	}, packages...)...)
	cmd.Dir = filepath.Join(l.root, folder)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED="+cgo, "CC="+cc)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text.String())
	}
	return nil
}

// compilers are Debian's C compilers by architecture; NVML needs one, since
// go-nvml opens it by cgo.
var compilers = map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}

// compiler is the one for an architecture. The machine's own may have another name.
func compiler(arch string) (string, error) {
	cc, ok := compilers[arch]
	_, err := exec.LookPath(cc)
	switch {
	case ok && err == nil:
		return cc, nil
	case arch == runtime.GOARCH:
		return "gcc", nil
	case !ok:
		return "", errors.New("no compiler is known for this architecture")
	}
	return "", fmt.Errorf("%w: apt-get install gcc-%s libc6-dev-%s-cross", err, strings.TrimSuffix(cc, "-gcc"), arch)
}

// programs links programs and puts them into a directory, for those who run them without
// an image.
func programs(ctx context.Context, l *linker, arch, out string, names []string) error {
	if err := l.link(ctx, arch, names); err != nil {
		return err
	}
	for _, name := range withHook(names) {
		if err := place(l.program(arch, name), filepath.Join(out, name)); err != nil {
			return err
		}
	}
	return nil
}

// place makes a file another name of a program, or a copy where that cannot be. The program's
// next version is another file, so that this one stays as it is.
func place(program, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if os.Link(program, file) == nil {
		return nil
	}
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
