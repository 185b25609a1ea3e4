// Package report is what the device plugin reports of itself as JSON, at
// [Path] of its metrics address. It is plain values: it reads nothing.
package report

import (
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

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
	// Cards are the node's GPUs, and Strangers the UUIDs of cordoned ones that
	// it does not have.
	Cards     []Card   `json:"cards,omitempty"`
	Strangers []string `json:"strangers,omitempty"`
	// Refused are the pods that wait for shares, because theirs were rejected, and Enforcers what makes the
	// limits of those hold that start now; nil if nothing is to.
	Refused   []Refusal  `json:"refused,omitempty"`
	Enforcers *Enforcers `json:"enforcers,omitempty"`
	// Unserved are the resources that the configuration calls for and that
	// are not served; Problems has the reason.
	Unserved []string `json:"unserved,omitempty"`
	// MPS are the MPS daemons of the cards that have tenants with MPS.
	MPS []enforce.Daemon `json:"mps,omitempty"`
	// Unmeasured is why it is not measured what containers use of shared GPUs;
	// empty if it is, and on a node that shares none.
	Unmeasured string `json:"unmeasured,omitempty"`
}

// Card is how one GPU is handed out.
type Card struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	// Mode is native or sgpu, empty while that is not known; Wanted is what the
	// configuration asks for.
	Mode   string `json:"mode"`
	Wanted string `json:"wanted"`
	// Until is what a change of mode waits for, such as "ns/pod ends"; empty if
	// there is none.
	Until string `json:"until,omitempty"`
	// Cordoned tells whether an operator took it out: no new pod gets it.
	Cordoned bool `json:"cordoned"`
	// Shared is nil for a card that is not handed out in shares.
	Shared *Shared `json:"shared,omitempty"`
}

// Shared is what a shared card has, and what is taken of it.
type Shared struct {
	// Policy is that of its tenants, empty without any and if one has the card
	// alone, which Exclusive shows.
	Policy    string `json:"policy,omitempty"`
	Exclusive bool   `json:"exclusive,omitempty"`
	// VCore is percent, UsedMiB of MemoryMiB, Tenants of Slots.
	VCore     int   `json:"vcore"`
	UsedMiB   int64 `json:"usedMiB"`
	MemoryMiB int64 `json:"memoryMiB"`
	Tenants   int   `json:"tenants"`
	Slots     int   `json:"slots"`
	// Against is why no new pod gets it; empty if one can.
	Against string `json:"against,omitempty"`
}

// Refusal is a pod that gets no share. Kind is request, allocation,
// unscheduled or full.
type Refusal struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid,omitempty"`
	Container string    `json:"container"`
	Kind      string    `json:"kind"`
	Reason    string    `json:"reason"`
	Since     time.Time `json:"since"`
}

// Enforcers are chosen apart for memory and compute. Fault is why there are
// none, and why all shares are rejected.
type Enforcers struct {
	Memory     string `json:"memory,omitempty"`
	WhyMemory  string `json:"whyMemory,omitempty"`
	Compute    string `json:"compute,omitempty"`
	WhyCompute string `json:"whyCompute,omitempty"`
	Fault      string `json:"fault,omitempty"`
}

// Pending is "GPU 3: native until ns/pod ends, then sgpu"; empty for a card
// that is handed out as configured.
func (c *Card) Pending() string {
	switch {
	case c.Until == "":
		return ""
	case c.Mode == "":
		return fmt.Sprintf("GPU %d: not handed out until %s, then %s", c.Index, c.Until, c.Wanted)
	}
	return fmt.Sprintf("GPU %d: %s until %s, then %s", c.Index, c.Mode, c.Until, c.Wanted)
}

// The kinds of resources. MIG devices are GPUs.
const (
	KindGPU = "gpu"
	KindHCA = "hca"
)

// Resource is one resource and what the kubelet gets of it.
type Resource struct {
	Name string `json:"name"`
	// Kind is what its devices are: KindGPU or KindHCA.
	Kind string `json:"kind"`
	// Former tells that the configuration does not have it any more.
	Former bool `json:"former,omitempty"`
	// Registered tells whether the kubelet takes the resource from the plugin, and
	// Owner who else serves it. Unless Registered, the plugin waits.
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
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	UID       string   `json:"uid,omitempty"`
	Container string   `json:"container"`
	GPUs      []string `json:"gpus"`
	HCAs      []string `json:"hcas"`
	HCAIDs    []string `json:"hcaIDs"`
	Class     string   `json:"class,omitempty"`
	// Shares are the parts of shared cards, of QoS policy Policy, which By
	// chose; see package allocation.
	Shares []allocation.Share `json:"shares,omitempty"`
	Policy string             `json:"policy,omitempty"`
	By     string             `json:"by,omitempty"`
	// Enforced is what makes the limits of the shares hold.
	Enforced enforce.Enforced `json:"enforced,omitzero"`
	// Unrecorded tells that the device plugin has lost what it knew of the
	// container: the shares are those that the pod's annotation names.
	Unrecorded bool              `json:"unrecorded,omitempty"`
	CDINames   map[string]string `json:"cdiNames"`
}

// Problem is something that is wrong: Name is with what, such as checkpoint
// or cdi.
type Problem struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}
