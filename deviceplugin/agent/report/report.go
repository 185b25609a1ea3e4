// Package report is what the device plugin tells of itself as JSON, at
// [Path] of its metrics address. It is plain values: it reads nothing.
package report

// Path is where the report is.
const Path = "/v1/bindings"

// Report is one node's.
type Report struct {
	Node      string     `json:"node"`
	Resources []Resource `json:"resources"`
	// Bindings are by namespace, pod and container.
	Bindings []Binding `json:"bindings"`
	// Problems are what is wrong with what the device plugin works with.
	Problems []Problem `json:"problems"`
	// GPUs are the indices of the node's GPUs, by UUID; a MIG device has that
	// of the GPU that it is cut from.
	GPUs map[string]int `json:"gpus"`
}

// The kinds of resources. MIG devices are GPUs.
const (
	KindGPU = "gpu"
	KindHCA = "hca"
)

// Resource is one resource and what the kubelet is told of it.
type Resource struct {
	Name string `json:"name"`
	// Kind is what its devices are: KindGPU or KindHCA.
	Kind string `json:"kind"`
	// Former tells that the configuration does not have it any more.
	Former bool `json:"former,omitempty"`
	// Registered tells whether the kubelet takes the resource from us, and
	// Owner who else serves it. Unless Registered, we wait for them.
	Registered bool   `json:"registered"`
	Owner      string `json:"owner,omitempty"`
	// Fault is why the resource is not registered, as far as it is known.
	Fault string `json:"fault,omitempty"`
	// Capacity counts device IDs, Allocatable the healthy ones, Withdrawn
	// those that are listed for the pods alone that still hold them.
	Capacity    int `json:"capacity"`
	Allocatable int `json:"allocatable"`
	Withdrawn   int `json:"withdrawn"`
	// Reason is why some or all of it cannot be had; empty if all is well.
	Reason string `json:"reason,omitempty"`
}

// Binding is what one container has. GPUs are UUIDs, HCAs RDMA names, and
// HCAIDs their identities in the same order. Class is the longest way from one
// of the HCAs to the nearest of the GPUs. CDINames are by resource.
type Binding struct {
	Namespace string            `json:"namespace"`
	Pod       string            `json:"pod"`
	UID       string            `json:"uid,omitempty"`
	Container string            `json:"container"`
	GPUs      []string          `json:"gpus"`
	HCAs      []string          `json:"hcas"`
	HCAIDs    []string          `json:"hcaIDs"`
	Class     string            `json:"class,omitempty"`
	CDINames  map[string]string `json:"cdiNames"`
}

// Problem is something that is wrong: Name says with what, such as checkpoint
// or cdi.
type Problem struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}
