package cdi

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/sharing/quota"
)

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
