package config

import (
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// The comments of the fields below are docs/reference/configuration.md.

// NodeConfig is the configuration of one node.
type NodeConfig struct { //nolint:recvcheck // For and its like answer with a changed copy.
	// Preset changes defaults and nothing that you set explicitly. `scheme` enables the taint of the
	// accelerator's model (`taints.gpuProduct`).
	Preset Preset `yaml:"preset" enum:",scheme"`
	// Mode selects how GPUs are allocated: `native` exclusively, `sgpu` in shares, `claims` by ResourceClaims
	// (Dynamic Resource Allocation).
	Mode Mode `yaml:"mode" enum:"native,sgpu,claims"`
	// GPUs selects the GPUs that pods get.
	GPUs GPUs `yaml:"gpus"`
	// SGPU configures shares, with `mode: sgpu` only.
	SGPU SGPU `yaml:"sgpu"`
	// Claims configures Dynamic Resource Allocation.
	Claims Claims `yaml:"claims"`
	// MIGStrategy selects the names of MIG devices, as in NVIDIA's device plugin: `none` offers none, `single`
	// calls them all `<vendor>/<card>` and needs one profile on all GPUs, `mixed` calls them
	// `<vendor>/mig-<profile>`.
	MIGStrategy MIGStrategy `yaml:"migStrategy" enum:"none,single,mixed"`
	// Domains are the prefixes of label and resource names.
	Domains wellknown.Domains `yaml:"domains"`
	// Resources are full resource names, for clusters with other names. The defaults follow `domains`.
	Resources Resources `yaml:"resources"`
	// RDMA configures HCAs.
	RDMA RDMA `yaml:"rdma"`
	// Health configures failing devices.
	Health Health `yaml:"health"`
	// Topology configures the node's place in the fabric.
	Topology Topology `yaml:"topology"`
	// Usage is the purpose of the node: the label and the taint `<company>/node.usage`. Empty means neither.
	Usage Usage `yaml:"usage" enum:",inference,training,hybrid"`
	// ControlPlane reserves the node for the control plane: the label `<company>/control-plane: "true"` and the
	// taint of that name.
	ControlPlane bool `yaml:"controlPlane"`
	// Taints are the taints to set.
	Taints Taints `yaml:"taints"`
	// Labels are rules for your own labels, one for each key. See "Label rules" below.
	Labels []LabelRule `yaml:"labels"`
	// LabelConflict selects what happens to a label that another field manager owns with another value: `yield`
	// leaves it and reports it in an Event and a metric; `force` takes it over. heddle always takes back keys
	// below heddle.dev.
	LabelConflict Conflict `yaml:"labelConflict" enum:"yield,force"`

	// Others are this configuration under the names of the other makers of GPUs that
	// the machine has, with or without a driver, by [NodeConfig.For]. These are exclusive.
	Others []*NodeConfig `yaml:"-" json:"-"`

	// Rules are Labels compiled, in their order; nil for a program that writes no labels.
	Rules []Rule `yaml:"-" json:"-"`
}

// GPUs selects the GPUs that pods get.
type GPUs struct {
	// Exclude are the GPUs that no pod gets and no label counts, by UUID, PCI address or product; entries are globs
	// ("*", "?", "[a-c]"). `display` means GPUs for a screen: the product `NVIDIA DGX Display`, and a VGA controller
	// with less than a quarter of the memory of a 3D controller beside it. `[]` excludes none.
	Exclude []Glob `yaml:"exclude" unique:"true"`
}

// Claims configures Dynamic Resource Allocation.
type Claims struct {
	// GPUs are the GPUs for claims, by index or UUID, in every `mode`; the device plugin serves the others. Empty means
	// all with `mode: claims`, and none otherwise.
	GPUs []GPURef `yaml:"gpus" unique:"true"`
	// HCASharers is the maximum number of devices, alone or in pairs, that use one HCA at a time.
	HCASharers int `yaml:"hcaSharers" range:"1-64"`
}

// Resources are the names that pods ask for.
type Resources struct {
	// GPU is an exclusive GPU; default `<vendor>/<card>`, or `<vendor>/<card>.exclusive` if `resources.sgpu`
	// has that name. heddle-topo-master counts free GPUs by it and reads it only at its start.
	GPU string `yaml:"gpu" json:"gpu"`
	// SGPU is a share of a GPU; default `<vendor>/sgpu`.
	SGPU string `yaml:"sgpu" json:"sgpu"`
	// VCore is percent of one GPU's compute; default `<vendor>/vcore`.
	VCore string `yaml:"vcore" json:"vcore"`
	// VMemory is one GPU's memory, in `vmemoryUnit`; default `<vendor>/vmemory`.
	VMemory string `yaml:"vmemory" json:"vmemory"`
	// VMemoryUnit is the unit of a plain number of vmemory. HAMi uses `MiB`.
	VMemoryUnit MemoryUnit `yaml:"vmemoryUnit" json:"vmemoryUnit" enum:"GiB,MiB"`
	// VMemoryPercentage is percent of one GPU's memory, for containers without vmemory, such as HAMi's
	// `nvidia.com/gpumem-percentage`. Empty disables it.
	VMemoryPercentage string `yaml:"vmemoryPercentage" json:"vmemoryPercentage"`
}

// RDMA is how HCAs are allocated.
type RDMA struct {
	// Resources are the resources made of HCAs. The default is `rdma/hca_shared_devices_ib` of all HCAs with role fabric.
	// `[]` disables them.
	Resources []RDMAResource `yaml:"resources"`
	// Roles are overrides of the roles that heddle discovers.
	Roles Roles `yaml:"roles"`
}

// RDMAResource is one resource made of HCAs.
type RDMAResource struct {
	// Name is the full name, such as `rdma/hca_shared_devices_ib`.
	Name string `yaml:"name" required:"true"`
	// Sharers is the maximum number of containers that share one HCA. The default fits RoCE's 128 GIDs per
	// port, two for each address. With 1 the device ID is the HCA's PCI address, for Multus and CNI plugins.
	Sharers int `yaml:"sharers" range:"1-4096"`
	// Count selects the answer to a request for n: `distinct` n different healthy HCAs, or fewer with an Event;
	// `strict` n, or the pod is rejected, and evicted after a minute if it never started and a controller
	// recreates it; `all` every HCA, whatever n is, as in older shared-device plugins.
	Count Count `yaml:"count" enum:"distinct,strict,all"`
	// Selectors are the selectors of HCAs; the default selects role fabric.
	Selectors Selectors `yaml:"selectors"`
}

// Selectors select HCAs: one entry of every given field must match. Only pciAddresses and pfNames select virtual
// functions, and only its own address in pciAddresses selects a physical function with virtual functions in a resource.
// Functions of NVSwitches are never selected. Names and addresses are globs ("*", "?", "[a-c]").
type Selectors struct {
	// Vendors are PCI vendor numbers, such as `15b3`.
	Vendors []HexID `yaml:"vendors"`
	// DeviceIDs are PCI device numbers, such as `1021` (ConnectX-7).
	DeviceIDs []HexID `yaml:"deviceIDs"`
	// Drivers are kernel drivers, such as `mlx5_core`.
	Drivers []Glob `yaml:"drivers"`
	// IfNames are network devices on the HCA, such as `ens*`.
	IfNames []Glob `yaml:"ifNames"`
	// LinkTypes are the types of those network devices; without one, the link layer of the HCA's port counts.
	LinkTypes []string `yaml:"linkTypes" enum:"ether,infiniband"`
	// PCIAddresses are addresses as `lspci -D` prints them: `0000:18:00.0`.
	PCIAddresses []Glob `yaml:"pciAddresses"`
	// PFNames are virtual functions, by RDMA names or network devices of their physical function.
	PFNames []Glob `yaml:"pfNames"`
	// Roles are roles of HCAs.
	Roles []machine.Role `yaml:"roles" enum:"fabric,storage,management,virtual"`
}

// Roles are lists of RDMA names or PCI addresses, as globs. The first list that has the HCA wins.
type Roles struct {
	// Fabric carries traffic between GPUs of different nodes.
	Fabric []Glob `yaml:"fabric"`
	// Storage carries storage or the cluster's ordinary network.
	Storage []Glob `yaml:"storage"`
	// Management carries administration.
	Management []Glob `yaml:"management"`
}

// Taints are the taints that the node gets, and their effect.
type Taints struct {
	// GPUProduct sets `<vendor>/<card>.product=<product>` on nodes with GPUs. It keeps away every DaemonSet
	// that does not tolerate it; `heddle doctor taints --if gpuProduct --node NODE` lists them. `preset:
	// scheme` enables it.
	GPUProduct bool `yaml:"gpuProduct"`
	// Effect is the effect of every taint: of gpuProduct, `usage` and `controlPlane`.
	Effect Effect `yaml:"effect" enum:"NoSchedule,PreferNoSchedule,NoExecute"`
}

// LabelRule makes one label.
type LabelRule struct {
	// Key is the label's key. heddle must not write it itself, and no other rule may have it.
	Key string `yaml:"key" required:"true"`
	// Value is a CEL expression for a text. An empty text means no label; an invalid label value means no label
	// and a problem in `heddle doctor`.
	Value string `yaml:"value" required:"true"`
	// When is a CEL expression for a boolean; without it the rule always applies.
	When string `yaml:"when"`
}
