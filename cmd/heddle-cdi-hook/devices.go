package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// devicesFile is where a container finds what it was given.
const devicesFile = "etc/heddle/devices.json"

// devices is a devices file as far as this program reads it.
type devices struct {
	fields map[string]json.RawMessage
	gpus   []json.RawMessage
	hcas   []json.RawMessage
}

// addDevices adds devices of a ResourceClaim, each as the text of a devices file, to the container's file. A container
// may use several requests and several claims: each device has a hook. It then repeats for NCCL which HCAs they are,
// unless the container's environment or its file says so.
func addDevices(proc string, stdin io.Reader, texts []string) error {
	c, err := readContainer(stdin)
	if err != nil {
		return err
	}
	_, root := c.root(proc)
	for _, text := range texts {
		own, err := parseDevices([]byte(text))
		if err != nil {
			return fmt.Errorf("%.100q: %w", text, err)
		}
		if err := own.addTo(root, c.Config.Process.Env); err != nil {
			return fmt.Errorf("/%s: %w", devicesFile, err)
		}
	}
	return nil
}

func parseDevices(text []byte) (*devices, error) {
	d := &devices{}
	if err := json.Unmarshal(text, &d.fields); err != nil {
		return nil, err
	}
	for key, list := range map[string]*[]json.RawMessage{"gpus": &d.gpus, "hcas": &d.hcas} {
		if err := json.Unmarshal(d.fields[key], list); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return d, nil
}

// addTo writes the container's file with the devices in it and these.
func (d *devices) addTo(root string, env []string) error {
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := makeDirs(dir); err != nil {
		return err
	}
	file, err := openFile(dir, devicesFile, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return err
	}
	// A file of the image does not list devices of this container.
	if had, err := parseDevices(text); err == nil && had.made() {
		d.gpus, d.hcas = union(had.gpus, d.gpus), union(had.hcas, d.hcas)
	}
	if err := d.checkShares(env); err != nil {
		return err
	}
	d.fields[madeBy], _ = json.Marshal(true)
	for key, list := range map[string][]json.RawMessage{"gpus": d.gpus, "hcas": d.hcas} {
		if d.fields[key], err = json.Marshal(list); err != nil {
			return err
		}
	}
	content, err := json.MarshalIndent(d.fields, "", "  ")
	if err == nil {
		_, err = file.WriteAt(append(content, '\n'), 0)
	}
	if err == nil {
		err = file.Truncate(int64(len(content)) + 1)
	}
	if err != nil {
		return err
	}
	return d.hint(dir, env)
}

// checkShares rejects a container with two shares if variables limit them: a container has one value of each.
func (d *devices) checkShares(env []string) error {
	shares := 0
	for _, text := range d.gpus {
		var gpu struct {
			Share json.RawMessage `json:"share"`
		}
		if err := json.Unmarshal(text, &gpu); err != nil {
			return err
		}
		if gpu.Share != nil {
			shares++
		}
	}
	limited := slices.ContainsFunc(env, func(e string) bool {
		return strings.HasPrefix(e, "CUDA_DEVICE_MEMORY_LIMIT") || strings.HasPrefix(e, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
	})
	if shares > 1 && limited {
		return fmt.Errorf("%d shares in one container: enforcers preload and mps limit one; use a container for each", shares)
	}
	return nil
}

// madeBy is the field of a file that this program wrote.
const madeBy = "claims"

func (d *devices) made() bool { return string(d.fields[madeBy]) == "true" }

// union adds the devices that a list does not have yet.
func union(had, more []json.RawMessage) []json.RawMessage {
	text := func(m json.RawMessage) string {
		var v any
		_ = json.Unmarshal(m, &v) // It was read as JSON before.
		canonical, _ := json.Marshal(v)
		return string(canonical)
	}
	for _, m := range more {
		if !slices.ContainsFunc(had, func(old json.RawMessage) bool { return text(old) == text(m) }) {
			had = append(had, m)
		}
	}
	return had
}

// ncclVariable names the HCAs that NCCL uses. "=" in front of the value makes names exact: mlx5_1 is also
// mlx5_10 otherwise.
const ncclVariable = "NCCL_IB_HCA="

// hint replaces the line of an earlier device in the container's file for NCCL, see [addNCCL].
func (d *devices) hint(dir *os.File, env []string) error {
	var ports []string
	for _, text := range d.hcas {
		var hca struct {
			Name  string `json:"name"`
			Ports []int  `json:"ports"`
		}
		if err := json.Unmarshal(text, &hca); err != nil {
			return err
		}
		for _, port := range hca.Ports {
			ports = append(ports, hca.Name+":"+strconv.Itoa(port))
		}
	}
	if len(ports) == 0 || slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, ncclVariable) }) {
		return nil
	}
	file, err := openFile(dir, ncclFile, unix.O_RDWR)
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle: no hints for NCCL:", err)
		return nil
	}
	defer func() { _ = file.Close() }()
	const most, mark = 1 << 20, "# The HCAs of the container's claims."
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return err
	}
	own, _, _ := strings.Cut(string(text), mark)
	if slices.ContainsFunc(strings.Split(own, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), ncclVariable)
	}) {
		return nil
	}
	if own != "" && !strings.HasSuffix(own, "\n") {
		own += "\n"
	}
	content := own + mark + "\n" + ncclVariable + "=" + strings.Join(ports, ",") + "\n"
	_, err = file.WriteAt([]byte(content), 0)
	return errors.Join(err, file.Truncate(int64(len(content))))
}

// makeDirs makes the directory of the devices file in the container's own file system.
func makeDirs(root *os.File) error {
	for _, path := range []string{"etc", "etc/heddle"} {
		fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inRoot,
		})
		if err == nil {
			_ = unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		parent, name := root, path
		if above, last, below := strings.Cut(path, "/"); below {
			fd, err := unix.Openat2(int(root.Fd()), above, &unix.OpenHow{
				Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: inRoot,
			})
			if err != nil {
				return err
			}
			parent, name = os.NewFile(uintptr(fd), above), last
			defer func() { _ = parent.Close() }()
		}
		if err := unix.Mkdirat(int(parent.Fd()), name, 0o755); err != nil {
			return err
		}
	}
	return nil
}
