// Package nvidia installs an NVIDIA driver that is not one: a driver root with
// a libnvidia-ml.so.1 of C and the user-space libraries under their versioned
// names, whose kernel side is a text file. Real go-nvml and nvcdi load it.
//
// A test upgrades the driver under a running daemon with Install (the
// libraries) and Control.Kernel (the module), makes functions fail or hang, and
// sees from Holders who keeps a session open. The package needs a C compiler
// and the headers of the go-nvml module.
package nvidia

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed library
var source embed.FS

// Driver is an installed driver.
type Driver struct {
	// Root is the driver's root directory: usr/lib/..., dev.
	Root string
	// dir is where the libraries are.
	dir string
}

// libraries are what an installation has beside NVML, by SONAME. A program that
// is linked with libcuda.so.1 needs the first.
func libraries() []string {
	return []string{"libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"}
}

// Libraries is the directory of the libraries.
func (d *Driver) Libraries() string { return d.dir }

// Triple is the directory of Debian's packages below usr/lib.
func Triple() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// Install puts a version of the driver's libraries into the folder dir of a
// root ("usr/lib/x86_64-linux-gnu"), in place of another version that is there.
// The kernel module stays as Control has it.
func Install(ctx context.Context, root, dir, version string) (*Driver, error) {
	d := &Driver{Root: root, dir: filepath.Join(root, dir)}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(d.dir, "lib*.so*"))
	if err != nil {
		return nil, err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	build, err := os.MkdirTemp("", "heddle-nvidia-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(build)
	nvml, err := source.ReadFile("library/nvml.c")
	if err != nil {
		return nil, err
	}
	if err := d.compile(ctx, build, "libnvidia-ml.so.1", version, string(nvml)); err != nil {
		return nil, err
	}
	for _, soname := range libraries() {
		const code = "int cuInit(unsigned flags) { return flags ? 1 : 0; }\n"
		if err := d.compile(ctx, build, soname, version, code); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// compile makes NAME.so.VERSION and the links that ldconfig and the installer make.
func (d *Driver) compile(ctx context.Context, build, soname, version, code string) error {
	headers, err := module(ctx, "github.com/NVIDIA/go-nvml")
	if err != nil {
		return err
	}
	file := filepath.Join(build, soname+".c")
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		return err
	}
	name, _, _ := strings.Cut(soname, ".so")
	versioned := name + ".so." + version
	cc := exec.CommandContext(ctx, "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-deprecated-declarations",
		"-DVERSION="+strconv.Quote(version), "-I", filepath.Join(headers, "pkg", "nvml"),
		"-Wl,-soname,"+soname, "-Wl,-z,nodelete", "-o", filepath.Join(d.dir, versioned), file)
	if out, err := cc.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", soname, err, out)
	}
	if err := os.Symlink(versioned, filepath.Join(d.dir, soname)); err != nil {
		return err
	}
	return os.Symlink(soname, filepath.Join(d.dir, name+".so"))
}

// module is the folder of a module in the module cache.
func module(ctx context.Context, path string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		return "", fmt.Errorf("find module %s: %w", path, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Sessions counts the sessions that processes have ever begun with this version.
func (d *Driver) Sessions() (int, error) {
	text, err := os.ReadFile(filepath.Join(d.dir, "nvidiactl"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return strings.Count(string(text), "\n"), err
}

// Holders are the processes that keep a session with the driver open: those
// that would keep the kernel from unloading its module.
func (d *Driver) Holders() ([]int, error) {
	control, err := filepath.EvalSymlinks(filepath.Join(d.dir, "nvidiactl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		// Descriptors and processes end while they are looked at.
		if target, err := os.Readlink(link); err != nil || target != control {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		if len(pids) == 0 || pids[len(pids)-1] != pid {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// MakeNodes makes the device nodes of a driver with these GPUs below its root.
func (d *Driver) MakeNodes(c Control, major uint32) error {
	names := []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
	for i := range c.GPUs {
		names = append(names, fmt.Sprint("nvidia", c.GPUs[i].Minor))
	}
	dev := filepath.Join(d.Root, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		return err
	}
	for minor, name := range names {
		path := filepath.Join(dev, name)
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, uint32(minor))))
		if err = errors.Join(err, os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	return nil
}
