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
)

func main() {
	err := errors.New("want: heddle-cdi-hook mounts /on/the/node=/in/the/container, dmem REGION=BYTES, " +
		"env or nccl NAME=VALUE, as many as there are; or copy FILE TARGET")
	switch command := append(os.Args, "")[1]; command {
	case "mounts":
		err = checkMounts("/proc", os.Stdin, os.Args[2:])
	case "env":
		err = checkEnv(os.Stdin, os.Args[2:])
	case "copy":
		err = copyFile(os.Args[2:])
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

// maxJSON bounds what is read of the runtime's files.
const maxJSON = 16 << 20

// bundle is the container as the runtime made it.
type bundle struct {
	Root struct {
		Path string `json:"path"`
	} `json:"root"`
	Process struct {
		Env []string `json:"env"`
	} `json:"process"`
}

func readBundle(dir string) (*bundle, error) {
	file, err := os.Open(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("bundle of the container: %w", err)
	}
	defer func() { _ = file.Close() }()
	config := &bundle{}
	if err := json.NewDecoder(io.LimitReader(file, maxJSON)).Decode(config); err != nil {
		return nil, fmt.Errorf("bundle of the container: %w", err)
	}
	return config, nil
}

// rootOf returns the container's root directory on the node, by the runtime's bundle.
func rootOf(dir string) (string, error) {
	config, err := readBundle(dir)
	if err != nil {
		return "", err
	}
	root := config.Root.Path
	if !filepath.IsAbs(root) {
		root = filepath.Join(dir, root)
	}
	// The kernel lists mounts without links, such as /var/run.
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	return root, nil
}
