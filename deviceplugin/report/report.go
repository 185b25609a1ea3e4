// Package report is the JSON that the device plugin serves about itself, at
// [Path] of its metrics address. It is plain values: it reads nothing.
package report

import (
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Path is the HTTP path of the report.
const Path = "/v1/bindings"

// Audience is the audience of tokens for it and for metrics that name pods.
const Audience = "heddle-device-plugin"

// Report is the report of one node.
type Report struct {
	Node      string     `json:"node"`
	Resources []Resource `json:"resources"`
	// Bindings is keyed by namespace, pod and container.
	Bindings []Binding `json:"bindings"`
	// Problems lists the faults of the device plugin's inputs.
	Problems []Problem `json:"problems"`
	// GPUIndices maps the UUID of each GPU of the node to its index. A MIG
	// device has the index of the GPU that it is cut from.
	GPUIndices map[string]int `json:"gpuIndices"`
	// GPUs are the node's GPUs. UnknownCordoned are the UUIDs of cordoned GPUs
	// that the node does not have.
	GPUs            []GPU    `json:"gpus,omitempty"`
	UnknownCordoned []string `json:"unknownCordoned,omitempty"`
	// Rejected lists the pods that wait for shares because their request was rejected. Enforcers
	// describes the enforcement of limits for new shares; nil without enforcement.
	Rejected  []Rejection `json:"rejected,omitempty"`
	Enforcers *Enforcers  `json:"enforcers,omitempty"`
	// MPS are the MPS daemons of the GPUs that have consumers with MPS.
	MPS []enforce.Daemon `json:"mps,omitempty"`
	// Unmeasured explains why the use of shared GPUs is not measured; empty if it is measured, and
	// on a node without shared GPUs.
	Unmeasured string `json:"unmeasured,omitempty"`
}

// GPU holds the mode and the use of one GPU.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	PCI   string `json:"pci,omitempty"`
	// Mode is native or sgpu, empty while that is not known; Wanted is the configured
	// mode.
	Mode   string `json:"mode"`
	Wanted string `json:"wanted"`
	// Until names the event that a change of mode waits for, such as "ns/pod ends"; empty
	// without one.
	Until string `json:"until,omitempty"`
	// Cordoned is true if an operator cordoned the GPU: no new pod gets it.
	Cordoned bool `json:"cordoned"`
	// Shared has the capacity and the use of a shared GPU; nil for exclusive ones.
	Shared *quota.GPU `json:"shared,omitempty"`
}

// Rejection is a pod that gets no share, not its HCAs or IMEX channels. Kind is request, allocation,
// unscheduled, full, numa, hcas or imex.
type Rejection struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container"`
	Kind      string    `json:"kind"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
	// Never is true if the node cannot give it that, however much of it is free.
	Never bool `json:"never,omitempty"`
}

// Enforcers holds the enforcers of new shares. LastError explains their absence and the rejection of all
// shares.
type Enforcers struct {
	enforce.Choice
	LastError string `json:"lastError,omitempty"`
}

// Pending returns "GPU 3: native until ns/pod ends, then sgpu"; empty for a GPU
// that is in its configured mode.
func (c *GPU) Pending() string {
	switch {
	case c.Until == "":
		return ""
	case c.Mode == "":
		return fmt.Sprintf("GPU %d: not allocated until %s, then %s", c.Index, c.Until, c.Wanted)
	}
	return fmt.Sprintf("GPU %d: %s until %s, then %s", c.Index, c.Mode, c.Until, c.Wanted)
}

// The kinds of resources. MIG devices are GPUs.
const (
	KindGPU = "gpu"
	KindHCA = "hca"
	// KindShare is parts of shared GPUs: replicas of them, percents, GiB.
	KindShare = "share"
)

// Resource describes one resource as offered to the kubelet.
type Resource struct {
	Name string `json:"name"`
	// Kind is the kind of its devices: KindGPU, KindHCA or KindShare.
	Kind string `json:"kind"`
	// Former is true if the configuration no longer has the resource.
	Former bool `json:"former,omitempty"`
	// Registered is true if the plugin is registered with the kubelet for the
	// resource. Owner is another plugin that serves it. Unless Registered, the
	// plugin waits.
	Registered bool   `json:"registered"`
	Owner      string `json:"owner,omitempty"`
	// LastError explains why the resource is not registered, if known.
	LastError string `json:"lastError,omitempty"`
	// Capacity counts device IDs, Allocatable the healthy ones, Withdrawn
	// those that are listed for the pods alone that still hold them.
	Capacity    int `json:"capacity"`
	Allocatable int `json:"allocatable"`
	Withdrawn   int `json:"withdrawn"`
	// Reason explains why some or all devices are unavailable, or is empty.
	Reason string `json:"reason,omitempty"`
}

// Binding is the devices of one container. GPUs are UUIDs, HCAs RDMA names, and
// HCAIDs their identities in the same order. Class is the longest way from one
// of the HCAs to the nearest of the GPUs. CDINames is keyed by resource.
type Binding struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid,omitempty"`
	Container string `json:"container"`
	// Claim is the ResourceClaim that brings the devices, in place of a container: its containers may use some of
	// them.
	Claim  string   `json:"claim,omitempty"`
	GPUs   []string `json:"gpus"`
	HCAs   []string `json:"hcas"`
	HCAIDs []string `json:"hcaIDs"`
	Class  string   `json:"class,omitempty"`
	// Sharing has the parts of shared GPUs, Enforced the enforcers of their limits.
	allocation.Sharing
	Enforced enforce.Enforced `json:"enforced,omitzero"`
	// Unrecorded is true if the container has shares and its checkpoint entry and
	// CDI spec were lost: GPUs are the GPUs that its device IDs name.
	Unrecorded bool              `json:"unrecorded,omitempty"`
	CDINames   map[string]string `json:"cdiNames"`
}
