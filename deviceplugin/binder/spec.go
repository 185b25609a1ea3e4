package binder

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
)

// DevicesFile is where a container finds what it was given, as JSON; see
// [Devices].
const DevicesFile = "/etc/heddle/devices.json"

// The environment of containers. EnvGPUs and EnvHCAs are always there, the
// hints unless the container may set them itself.
const (
	// EnvGPUs is a comma list of the container's GPU UUIDs.
	EnvGPUs = "HEDDLE_GPUS"
	// EnvHCAs is a comma list of RDMA names, in PCI order.
	EnvHCAs = "HEDDLE_HCAS"
	// EnvNCCL begins with "=", because NCCL takes names for prefixes
	// otherwise: mlx5_1 is also mlx5_10.
	EnvNCCL = "NCCL_IB_HCA"
	// EnvUCX is a comma list of name:port.
	EnvUCX = "UCX_NET_DEVICES"
	// EnvShares is the container's shares as JSON, see [Shares]. It is in its
	// CDI spec for us: the spec alone must tell who has what.
	EnvShares = "HEDDLE_SHARES"
)

// cdiVersion is the lowest that allows device names which begin with a digit,
// and hostPath. Runtimes refuse specs that are newer than themselves.
const cdiVersion = "0.5.0"

// Devices is the content of [DevicesFile].
type Devices struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	GPUs      []GPU  `json:"gpus"`
	HCAs      []HCA  `json:"hcas"`
}

// GPU is a GPU of a container.
type GPU struct {
	// UUID is the device's; for an instance (MIG) the instance's.
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	PCI   string `json:"pci"`
	// HCA is the container's nearest HCA, and Class the way to it; empty
	// without HCAs.
	HCA   string `json:"hca,omitempty"`
	Class string `json:"class,omitempty"`
	// Share is what the container has of the GPU; nil for a whole one.
	Share *Share `json:"share,omitempty"`
}

// Share is a part of a GPU.
type Share struct {
	// VCore is percent of the GPU's compute; 0 has no limit.
	VCore     int   `json:"vcore"`
	MemoryMiB int64 `json:"memoryMiB"`
	// Policy is fixed-share, burst-share or best-effort.
	Policy string `json:"policy"`
}

// HCA is an HCA of a container.
type HCA struct {
	// ID is the identity, Name the RDMA name.
	ID   string `json:"id"`
	Name string `json:"name"`
	PCI  string `json:"pci"`
	// Resource is the one that the container asked for.
	Resource string `json:"resource"`
	// Ports are the numbers of the active ports.
	Ports     []int    `json:"ports"`
	LinkLayer string   `json:"linkLayer"`
	RateGbps  *float64 `json:"rateGbps"`
	// Rail is as in [affinity.Rails]; -1 for others.
	Rail int `json:"rail"`
	// GPU is the UUID of the container's nearest GPU, and Class the way to
	// it; empty without GPUs.
	GPU   string `json:"gpu,omitempty"`
	Class string `json:"class,omitempty"`
	// Nodes are the device nodes, as paths.
	Nodes []string `json:"nodes"`
}

// outfit is what a container gets besides devices. Every spec of a container
// has all of it, the same in each, so that it does not matter which of its CDI
// names a runtime applies last.
type outfit struct {
	env     []string
	devices []byte
}

// infiniband is the folder of RDMA device nodes below /dev.
const infiniband = "infiniband"

// dress makes a container's outfit. pod is nil if it is not known, which
// withholds the hints, as envFrom does: CDI's environment wins over the pod's
// (containerd 2.2), and a hint must not win over what somebody set.
func dress(d *Devices, pod *corev1.Pod, gpuEnv []string) (*outfit, error) {
	content, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("devices of container %s: %w", d.Container, err)
	}
	o := &outfit{devices: append(content, '\n')}
	if len(d.GPUs) > 0 {
		o.env = slices.Clone(gpuEnv)
	}
	o.env = append(o.env,
		EnvGPUs+"="+join(d.GPUs, func(g *GPU) string { return g.UUID }),
		EnvHCAs+"="+join(d.HCAs, func(h *HCA) string { return h.Name }))
	ports := join(d.HCAs, hintOf)
	if ports == "" {
		return o, nil
	}
	if mayHint(pod, d.Container, EnvNCCL) {
		o.env = append(o.env, EnvNCCL+"="+"="+ports)
	}
	if mayHint(pod, d.Container, EnvUCX) {
		o.env = append(o.env, EnvUCX+"="+ports)
	}
	return o, nil
}

// hintOf is name:port for every active port, empty if there is none.
func hintOf(h *HCA) string {
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

// mayHint tells whether the container leaves a key to us.
func mayHint(pod *corev1.Pod, container, key string) bool {
	if pod == nil {
		return false
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if c.Name != container {
				continue
			}
			set := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == key })
			return !set && len(c.EnvFrom) == 0
		}
	}
	return false
}

// specFile is the name of a record's spec in the CDI directory.
func specFile(r *record) string { return specStart + r.Kind + "-" + r.Device + jsonEnd }

const specStart = "heddle-"

// specOf is the CDI spec of one record: what is its own, the rest is its
// container's. Driver mounts and the nodes of whole GPUs are in the driver's
// static spec, whose devices Allocate names beside ours.
func (b *Binder) specOf(g *grant, o *outfit) ([]byte, error) {
	r := g.record
	edits := cdi.ContainerEdits{
		Env: slices.Clone(o.env),
		Mounts: []*cdi.Mount{{
			HostPath:      filepath.Join(b.options.StateDir, deviceDir, r.Device+jsonEnd),
			ContainerPath: DevicesFile,
			Options:       []string{"bind", "ro", "nosuid", "nodev", "noexec"},
		}},
	}
	for _, node := range g.nodes {
		n := &cdi.DeviceNode{Path: "/dev/" + node, Permissions: "rw"}
		if host := filepath.Join(b.options.DevRoot, node); host != n.Path {
			n.HostPath = host
		}
		edits.DeviceNodes = append(edits.DeviceNodes, n)
	}
	merge(&edits, g.edits)
	spec := cdi.Spec{
		Version: cdiVersion, Kind: vendor + "/" + r.Kind,
		Devices: []cdi.Device{{Name: r.Device, ContainerEdits: edits}},
	}
	version, err := cdi.MinimumRequiredVersion(&spec)
	if err != nil {
		return nil, fmt.Errorf("CDI spec of %s: %w", r.name(), err)
	}
	// Versions are single digits.
	spec.Version = max(cdiVersion, version)
	content, err := json.Marshal(&spec)
	if err != nil {
		return nil, fmt.Errorf("CDI spec of %s: %w", r.name(), err)
	}
	return append(content, '\n'), nil
}

// nodesOf are the device nodes that an HCA's user needs, below /dev: its
// uverbs. umad and issm are for those who manage the fabric.
func nodesOf(h *machine.HCA) []string {
	nodes := make([]string, len(h.CharDevices.UVerbs))
	for i, name := range h.CharDevices.UVerbs {
		nodes[i] = infiniband + "/" + name
	}
	return nodes
}

// connectionManager is the node that all HCAs share, below /dev.
const connectionManager = infiniband + "/rdma_cm"
