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

// newLinker returns a linker for a directory, by default one in the user's cache, which it locks until
// end is called.
func newLinker(root, dir, version string) (l *linker, end func(), err error) {
	if root, err = filepath.Abs(root); err != nil {
		return nil, nil, err
	}
	if dir == "" {
		if dir, err = os.UserCacheDir(); err != nil {
			return nil, nil, err
		}
		dir = filepath.Join(dir, "heddle", "programs")
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

// link links programs and the second programs of their images, each in its own module.
func (l *linker) link(ctx context.Context, arch string, names []string) error {
	cc, err := compiler(arch)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(l.dir, arch), 0o755); err != nil {
		return err
	}
	for _, name := range withHook(names) {
		folder, cgo := filepath.Join(l.root, "cmd", name), "1"
		switch name {
		case volcano:
			folder = filepath.Join(l.root, "cmd/heddle-"+volcano)
		case mountsHook: // It also runs on the node, with an unknown C library.
			cgo = "0"
		}
		// NVML's functions are bound lazily, since older drivers lack some.
		err := goBuild(ctx, folder, l.program(arch, name),
			"-s -w -X main.version="+l.version+" -extldflags=-Wl,-z,lazy,--build-id=none",
			[]string{"GOOS=linux", "GOARCH=" + arch, "CGO_ENABLED=" + cgo, "CC=" + cc})
		if err != nil {
			return fmt.Errorf("%s for %s: %w", name, arch, err)
		}
	}
	return nil
}

// goBuild compiles the program in a folder.
func goBuild(ctx context.Context, folder, out, ldflags string, env []string) error {
	cmd := exec.CommandContext(ctx, "go",
		"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", ldflags, "-o", out, ".")
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
	cc := compilers[arch]
	_, err := exec.LookPath(cc)
	switch {
	case err == nil:
		return cc, nil
	case arch == runtime.GOARCH:
		return "gcc", nil
	}
	return "", fmt.Errorf("no C compiler for %s: %w: apt-get install gcc-%s libc6-dev-%s-cross",
		arch, err, strings.TrimSuffix(cc, "-gcc"), arch)
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
