package cdi

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// DevicesFile is where a container finds what it was given, as JSON; see
// [Devices].
const DevicesFile = "/etc/heddle/devices.json"

// Devices is the content of [DevicesFile].
type Devices struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	Container string      `json:"container"`
	GPUs      []DeviceGPU `json:"gpus"`
	HCAs      []DeviceHCA `json:"hcas"`
}

// DeviceGPU is a GPU of a container.
type DeviceGPU struct {
	// UUID is the device's; for an instance (MIG) the instance's.
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	PCI   string `json:"pci"`
	// HCA is the container's nearest HCA, and Class the path to it; empty
	// without HCAs.
	HCA   string `json:"hca,omitempty"`
	Class string `json:"class,omitempty"`
	// Share is the container's part of the GPU, and Policy its QoS policy; nil and empty for an
	// exclusive GPU.
	Share  *allocation.Share `json:"share,omitempty"`
	Policy string            `json:"policy,omitempty"`
}

// DeviceHCA is an HCA of a container.
type DeviceHCA struct {
	// ID is the identity, Name the RDMA name.
	ID   string `json:"id"`
	Name string `json:"name"`
	PCI  string `json:"pci"`
	// Resource is the one that the container asked for.
	Resource string `json:"resource"`
	// Ports are the numbers of the active ports; of an HCA that a CNI plugin brings
	// up in the pod's network, of all.
	Ports     []int    `json:"ports"`
	LinkLayer string   `json:"linkLayer"`
	RateGbps  *float64 `json:"rateGbps"`
	// Rail is as in affinity.Rails; -1 for others.
	Rail int `json:"rail"`
	// GPU is the UUID of the container's nearest GPU, and Class the path to
	// it; empty without GPUs.
	GPU   string `json:"gpu,omitempty"`
	Class string `json:"class,omitempty"`
	// Nodes are the device nodes, as paths.
	Nodes []string `json:"nodes"`
}

// File returns the content of [DevicesFile].
func (d *Devices) File() ([]byte, error) {
	content, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("devices of container %s: %w", d.Container, err)
	}
	return append(content, '\n'), nil
}

// The environment of containers. EnvGPUs and EnvHCAs are always there, the
// hints unless the container may set them itself.
const (
	// EnvGPUs is a comma list of the container's GPU UUIDs.
	EnvGPUs = "HEDDLE_GPUS"
	// EnvHCAs is a comma list of RDMA names, in PCI order.
	EnvHCAs = "HEDDLE_HCAS"
	// EnvShares has the container's shares of GPUs, as JSON of package allocation.
	EnvShares = "HEDDLE_SHARES"
	// EnvNCCL begins with "=", because NCCL takes names for prefixes
	// otherwise: mlx5_1 is also mlx5_10.
	EnvNCCL = "NCCL_IB_HCA"
	// EnvUCX is a comma list of name:port.
	EnvUCX = "UCX_NET_DEVICES"
)

// Env returns the environment that every spec of the container has, the same in each,
// so that it does not matter which of its CDI names a runtime applies last.
// gpuEnv comes first if it has GPUs. A pod that is nil, for unknown, withholds
// the hints, as envFrom does: CDI's environment wins over the pod's (containerd
// 2.2), and a hint must not win over what a user set.
func (d *Devices) Env(pod *corev1.Pod, gpuEnv []string) []string {
	var env []string
	if len(d.GPUs) > 0 {
		env = slices.Clone(gpuEnv)
	}
	env = append(env,
		EnvGPUs+"="+join(d.GPUs, func(g *DeviceGPU) string { return g.UUID }),
		EnvHCAs+"="+join(d.HCAs, func(h *DeviceHCA) string { return h.Name }))
	ports := join(d.HCAs, activePorts)
	if ports == "" {
		return env
	}
	if mayHint(pod, d.Container, EnvNCCL) {
		env = append(env, EnvNCCL+"="+"="+ports)
	}
	if mayHint(pod, d.Container, EnvUCX) {
		env = append(env, EnvUCX+"="+ports)
	}
	return env
}

// NCCLHook has a container's file for NCCL repeat the hint of its environment: what sshd
// starts in the container has no environment of it. Nil without a hint or a hook.
func NCCLHook(hook string, env []string) *specs.ContainerEdits {
	at := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, EnvNCCL+"=") })
	if hook == "" || at < 0 {
		return nil
	}
	return &specs.ContainerEdits{Hooks: []*specs.Hook{{
		HookName: "createRuntime", Path: hook, Args: []string{filepath.Base(hook), "nccl", env[at]},
	}}}
}

// activePorts is name:port for every active port, or empty.
func activePorts(h *DeviceHCA) string {
	ports := make([]string, len(h.Ports))
	for i, p := range h.Ports {
		ports[i] = h.Name + ":" + strconv.Itoa(p)
	}
	return strings.Join(ports, ",")
}

func join[T any](list []T, word func(*T) string) string {
	var words []string
	for i := range list {
		if w := word(&list[i]); w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, ",")
}

// mayHint reports whether the container leaves a key to heddle.
func mayHint(pod *corev1.Pod, container, key string) bool {
	if pod == nil {
		return false
	}
	c, _ := quota.ContainerOf(pod, container)
	return c != nil && len(c.EnvFrom) == 0 &&
		!slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == key })
}
