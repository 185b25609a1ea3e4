//go:build linux

// Command report is the main of the containers in this package's tests. It
// prints one line of JSON, what the container sees of GPUs and HCAs, and waits
// for SIGTERM. An argument changes that: "once" ends at once, "fail" ends with
// status 1, "stop" ends the container's first process, "open" tries the paths of a
// pattern, "write" makes a file; those are for init containers and for exec.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// report is what the test reads.
type report struct {
	Env map[string]string `json:"env"`
	// Open has the answer to opening each device node, by path: ENXIO if the
	// device cgroup lets it through, for there is no driver behind the nodes,
	// EPERM if not. "made" are nodes that the container made itself.
	Open map[string]string `json:"open"`
	// Devices is the file that the device plugin mounts; empty without.
	Devices string `json:"devices"`
	// Mounted are the mount options of that file.
	Mounted string `json:"mounted"`
	// CPUs are those that the process may run on.
	CPUs []int `json:"cpus"`
	// Room is how many bytes went into a directory of the preloaded library, tooMuch at
	// most.
	Room map[string]int64 `json:"room"`
	// Found are the files that were there before, which a look leaves behind: marks.
	Found map[string][]string `json:"found"`
}

const (
	tooMuch = 64 << 20
	mark    = "mark"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	err := run(ctx, append(os.Args, "", "")[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	r := &report{Open: map[string]string{}}
	switch mode, path := args[0], args[1]; mode {
	case "stop":
		return unix.Kill(1, unix.SIGTERM)
	case "open":
		paths, _ := filepath.Glob(path) // Of the test, and well-formed.
		for _, path := range paths {
			r.Open[path] = open(path)
		}
		return json.NewEncoder(out).Encode(r)
	case "write":
		r.Open[path] = answer(os.WriteFile(path, nil, 0o600))
		return json.NewEncoder(out).Encode(r)
	}
	if err := json.NewEncoder(out).Encode(look()); err != nil {
		return err
	}
	switch args[0] {
	case "once":
	case "fail":
		return errors.New("asked to fail")
	default:
		<-ctx.Done()
	}
	return nil
}

func look() *report {
	r := &report{
		Env: map[string]string{}, Open: map[string]string{}, Room: map[string]int64{}, Found: map[string][]string{},
		CPUs: processors(),
	}
	for _, e := range os.Environ() {
		key, value, _ := strings.Cut(e, "=")
		r.Env[key] = value
	}
	for _, pattern := range []string{
		"/dev/nvidia*", "/dev/dri/*", "/dev/nvidia-caps-imex-channels/*", "/dev/infiniband/*",
		"/host/gpus/*", "/host/infiniband/*",
	} {
		paths, _ := filepath.Glob(pattern) // The patterns are well-formed.
		for _, path := range paths {
			r.Open[path] = open(path)
			if strings.HasPrefix(path, "/host/") {
				r.Open[strings.Replace(path, "/host/", "/made/", 1)] = makeAndOpen(path)
			}
		}
	}
	const devices = "/etc/heddle/devices.json"
	if b, err := os.ReadFile(devices); err == nil {
		r.Devices = string(b)
	}
	r.Mounted = mountOptions(devices)
	for _, dir := range []string{"/usr/local/vgpu/region", "/tmp/vgpulock"} {
		if entries, err := os.ReadDir(dir); err == nil {
			for _, e := range entries {
				r.Found[dir] = append(r.Found[dir], e.Name())
			}
			r.Room[dir] = fill(dir)
			_ = os.WriteFile(filepath.Join(dir, mark), nil, 0o600)
		}
	}
	return r
}

// processors are those that the process may use.
func processors() (all []int) {
	var cpus unix.CPUSet
	if unix.SchedGetaffinity(0, &cpus) != nil {
		return nil
	}
	for i := range 1024 {
		if cpus.IsSet(i) {
			all = append(all, i)
		}
	}
	return all
}

// fill writes into a directory until that fails.
func fill(dir string) (written int64) {
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		return 0
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer func() { _ = f.Close() }()
	for some := make([]byte, 1<<20); written < tooMuch; {
		n, err := f.Write(some)
		if written += int64(n); err != nil {
			break
		}
	}
	return written
}

func open(path string) string {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close()
	}
	return answer(err)
}

// answer is the name of a system call's error.
func answer(err error) string {
	if err == nil {
		return "ok"
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// makeAndOpen makes a node of its own with the device number of path.
func makeAndOpen(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		return "no device"
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err.Error()
	}
	const own = "/made"
	if err := unix.Mknod(own, unix.S_IFCHR|0o600, int(st.Rdev)); err != nil {
		return "EPERM" // Not even that is allowed.
	}
	defer func() { _ = os.Remove(own) }()
	return open(own)
}

// mountOptions are field 6 of a mount point's line in mountinfo.
func mountOptions(point string) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 5 && f[4] == point {
			return f[5]
		}
	}
	return ""
}
