// Command heddle-cdi-hook runs on the node while the runtime creates a container,
// when all mounts are made and nothing of the container runs yet (createRuntime in
// the OCI runtime specification). It rejects a container in which another mount, or
// a link that one leads through, hides a mount of heddle:
//
//	heddle-cdi-hook mounts /on/the/node=/in/the/container...
//
// or one in which another value of a variable is in place of heddle's:
//
//	heddle-cdi-hook env CUDA_DEVICE_SM_LIMIT_0=30...
//
// or limits the device memory of a container's cgroup:
//
//	heddle-cdi-hook dmem drm/0000:03:00.0/vram=BYTES...
//
// or adds variables to the container's /etc/nccl.conf:
//
//	heddle-cdi-hook nccl NCCL_IB_HCA==mlx5_0:1
//
// or adds a device of a ResourceClaim to the container's /etc/heddle/devices.json, and to its /etc/nccl.conf:
//
//	heddle-cdi-hook devices '{"gpus":[{"uuid":"GPU-…"}],"hcas":[]}'...
//
// or gives a share of a ResourceClaim to one container at a time:
//
//	heddle-cdi-hook alone /on/the/node/file...
//
// Init containers of the chart run it too, in images without a program. There
// it copies a file of the image to the node:
//
//	heddle-cdi-hook copy /libvgpu.so /on/the/node/libvgpu.so
//
// heddle-device-plugin puts it into its state directory and names it in CDI specs,
// so it is linked statically and needs nothing of the node.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

func main() {
	err := errors.New("want: heddle-cdi-hook mounts /on/the/node=/in/the/container, dmem REGION=BYTES, " +
		"devices JSON, alone FILE, env or nccl NAME=VALUE, as many as there are; or copy FILE TARGET")
	switch command := append(os.Args, "")[1]; command {
	case "mounts":
		err = checkMounts("/proc", os.Stdin, os.Args[2:])
	case "env":
		err = checkEnv(os.Stdin, os.Args[2:])
	case "copy":
		err = copyFile(os.Args[2:])
	case "devices":
		err = addDevices("/proc", os.Stdin, os.Args[2:])
	case "alone":
		err = takeAlone("/proc", os.Stdin, os.Args[2:])
	case "nccl":
		err = addNCCL("/proc", os.Stdin, os.Args[2:])
	case controller:
		err = limitMemory("/proc", "/sys/fs/cgroup", os.Stdin, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle:", err) // The runtime has it in its own error.
		os.Exit(1)
	}
}

// container is the state that the runtime passes, and its bundle's config.json as far as it matters.
type container struct {
	PID    int    `json:"pid"`
	Bundle string `json:"bundle"`
	Config struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
	} `json:"-"`
}

// readState reads the runtime's state of the container, without its bundle.
func readState(stdin io.Reader) (*container, error) {
	c := &container{}
	if err := json.NewDecoder(stdin).Decode(c); err != nil {
		return nil, fmt.Errorf("the runtime's state of the container: %w", err)
	}
	return c, nil
}

// readContainer reads the runtime's state of the container, and its bundle.
func readContainer(stdin io.Reader) (*container, error) {
	c, err := readState(stdin)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err == nil {
		err = json.Unmarshal(content, &c.Config)
	}
	if err != nil {
		return nil, fmt.Errorf("bundle of the container: %w", err)
	}
	return c, nil
}

// root returns the container's process and its root directory there: the mounts are in the
// container's namespace, which has the node's root until the runtime changes it.
func (c *container) root(proc string) (process, root string) {
	root = c.Config.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(c.Bundle, root)
	}
	// The kernel lists mounts without links, such as /var/run.
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	process = filepath.Join(proc, strconv.Itoa(c.PID))
	return process, filepath.Join(process, "root", root)
}

// maxCopy bounds what is read into memory: as much as the plugin takes for a library.
const maxCopy = 64 << 20

// copyFile copies a file of an image to the node, for init containers with images
// without a program. A target of the same content is left as it is. Another one is
// replaced whole, and a process that has the old file mapped keeps that.
func copyFile(args []string) error {
	if len(args) != 2 {
		return errors.New("copy: want a file of the image, and where on the node it goes")
	}
	from, to := args[0], args[1]
	content, err := hostfile.ReadAtMost(from, maxCopy)
	if err == nil && len(content) == 0 {
		err = fmt.Errorf("%s is empty", from)
	}
	if err != nil {
		return fmt.Errorf("copy: in the image: %w", err)
	}
	if err := hostfile.Write(to, content, 0o755, hostfile.Durable); err != nil {
		return fmt.Errorf("copy: to the node: %w", err)
	}
	return nil
}
