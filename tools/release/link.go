package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// linker links programs into a directory for each architecture. An up-to-date program is not
// linked again: Go finds its build ID in the file.
type linker struct {
	root, dir, version string
}

// newLinker returns a linker for a directory, which it locks until end is called, or for a
// temporary one.
func newLinker(root, dir, version string) (l *linker, end func(), err error) {
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
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return &linker{root, dir, version}, func() { _ = lock.Close() }, nil
}

func (l *linker) program(arch, name string) string { return filepath.Join(l.dir, arch, name) }

// withHook adds the second program of the image of the node's daemons.
func withHook(names []string) []string {
	if slices.Contains(names, node) {
		return append(slices.Clone(names), mountsHook)
	}
	return names
}

// link links programs and the second programs of their images: those of the main module in one
// build, schedulers in their own modules.
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
		case name == mountsHook: // It also runs on the node, with an unknown C library.
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

// build runs go build in a folder. NVML's functions are bound lazily (-z lazy), since older
// drivers lack some.
func (l *linker) build(ctx context.Context, arch, cgo, folder, out string, packages ...string) error {
	cc, err := compiler(arch)
	if err != nil {
		return err
	}
	return goBuild(ctx, filepath.Join(l.root, folder), out, "-s -w -X main.version="+l.version+
		" -extldflags=-Wl,-z,lazy,--build-id=none", []string{"GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=" + cgo, "CC=" + cc}, packages...)
}

// goBuild compiles packages in a folder.
func goBuild(ctx context.Context, folder, out, ldflags string, env []string, packages ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{
		"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", ldflags, "-o", out,
	}, packages...)...)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), env...)
	return execute(cmd)
}

// execute runs a command; the error has what it printed.
func execute(cmd *exec.Cmd) error {
	var text bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &text
	}
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args[:min(len(cmd.Args), 3)], " "), err, text.String())
	}
	return nil
}

// compilers are Debian's C compilers by architecture. go-nvml needs cgo.
var compilers = map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}

// compiler returns the C compiler for an architecture. The machine's own may have another name.
func compiler(arch string) (string, error) {
	cc, ok := compilers[arch]
	_, err := exec.LookPath(cc)
	switch {
	case ok && err == nil:
		return cc, nil
	case arch == runtime.GOARCH:
		return "gcc", nil
	case !ok:
		return "", errors.New("unsupported architecture")
	}
	return "", fmt.Errorf("%w: apt-get install gcc-%s libc6-dev-%s-cross", err, strings.TrimSuffix(cc, "-gcc"), arch)
}

// programs links programs into a directory, to run them without an image.
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

// place hard-links a program, or copies it across file systems. The program's next version is
// another file, so this one does not change.
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
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o755)
}
