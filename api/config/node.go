package config

import (
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// The comments of the fields below are docs/reference/configuration.md: their last
// paragraph, "Read by", names the programs that act on the key.

// NodeConfig is the configuration of one node.
type NodeConfig struct { //nolint:recvcheck // For and its like answer with a changed copy.
	// Preset changes defaults, and nothing that is written out. `scheme` puts
	// the taint of the accelerator's model on (`taints.gpuProduct`), as the
	// sGPU scheme of the field expects.
	//
	// Read by: heddle-feature-discovery.
	Preset Preset `yaml:"preset" enum:",scheme"`
	// Mode is how GPUs are allocated: `native` exclusively, `sgpu` in shares.
	//
	// Read by: heddle-device-plugin, heddle-feature-discovery.
	Mode Mode `yaml:"mode" enum:"native,sgpu"`
	// SGPU is about shares; it matters with `mode: sgpu` only.
	SGPU SGPU `yaml:"sgpu"`
	// MIGStrategy is how MIG devices are named, as in NVIDIA's device plugin:
	// `none` does not name them, `single` calls them all `<vendor>/<card>`, which
	// needs one profile on all GPUs, `mixed` calls them `<vendor>/mig-<profile>`.
	//
	// Read by: heddle-device-plugin, heddle-feature-discovery.
	MIGStrategy MIGStrategy `yaml:"migStrategy" enum:"none,single,mixed"`
	// Domains are the prefixes of label and resource names.
	//
	// Read by: every program.
	Domains wellknown.Domains `yaml:"domains"`
	// Resources are full resource names, for clusters with names that follow no
	// rule. Each default is built from `domains`.
	//
	// Read by: heddle-device-plugin, heddle-scheduler.
	Resources Resources `yaml:"resources"`
	// RDMA is about HCAs.
	RDMA RDMA `yaml:"rdma"`
	// Health is about devices that fail.
	//
	// Read by: heddle-device-plugin.
	Health Health `yaml:"health"`
	// Topology is about the place in the fabric.
	//
	// Read by: heddle-topo-worker.
	Topology Topology `yaml:"topology"`
	// Usage is the purpose of the node: the label and the taint
	// `<company>/node.usage`. Empty means neither.
	//
	// Read by: heddle-feature-discovery.
	Usage Usage `yaml:"usage" enum:",inference,training,hybrid"`
	// ControlPlane keeps the node for the control plane: the label
	// `<company>/control-plane: "true"` and the taint of that name.
	//
	// Read by: heddle-feature-discovery.
	ControlPlane bool `yaml:"controlPlane"`
	// Taints are the taints to set.
	//
	// Read by: heddle-feature-discovery.
	Taints Taints `yaml:"taints"`
	// Labels are rules for labels of your own, one for each key. See "Label
	// rules" below.
	//
	// Read by: heddle-feature-discovery.
	Labels []LabelRule `yaml:"labels"`
	// LabelConflict is the treatment of a label that another field manager
	// owns with another value: `yield` leaves it, reports it in an Event and a
	// metric, and writes the others; `force` takes it over. Keys below heddle.dev
	// are heddle's alone, and are taken back with either.
	//
	// Read by: heddle-feature-discovery, heddle-topo-master.
	LabelConflict Conflict `yaml:"labelConflict" enum:"yield,force"`

	// Others are this configuration under the names of the other makers of GPUs that
	// the machine has, with or without a driver, by [NodeConfig.For]. These are exclusive.
	Others []*NodeConfig `yaml:"-" json:"-"`

	// Rules are Labels compiled, in their order; nil for a program that writes no labels.
	Rules []Rule `yaml:"-" json:"-"`
}

// Resources are the names that pods ask for.
type Resources struct {
	// GPU is an exclusive GPU; default `<vendor>/<card>`, or
	// `<vendor>/<card>.exclusive` where `resources.sgpu` has that name.
	// heddle-topo-master, which counts free GPUs by it, reads it at its start alone.
	//
	// Read by: heddle-device-plugin, heddle-scheduler, heddle-topo-master.
	GPU string `yaml:"gpu" json:"gpu"`
	// SGPU is a share of a GPU; default `<vendor>/sgpu`.
	SGPU string `yaml:"sgpu" json:"sgpu"`
	// VCore is percent of one GPU's compute; default `<vendor>/vcore`.
	VCore string `yaml:"vcore" json:"vcore"`
	// VMemory is one GPU's memory, in `vmemoryUnit`; default `<vendor>/vmemory`.
	VMemory string `yaml:"vmemory" json:"vmemory"`
	// VMemoryUnit is the unit of a plain number of vmemory. HAMi counts `MiB`.
	VMemoryUnit MemoryUnit `yaml:"vmemoryUnit" json:"vmemoryUnit" enum:"GiB,MiB"`
	// VMemoryPercentage is percent of one GPU's memory, for containers without
	// vmemory, such as HAMi's `nvidia.com/gpumem-percentage`. Empty means no such resource.
	VMemoryPercentage string `yaml:"vmemoryPercentage" json:"vmemoryPercentage"`
}

// RDMA is how HCAs are allocated.
type RDMA struct {
	// Resources are the resources made of HCAs. The default is one,
	// `rdma/hca_shared_devices_ib`, of all HCAs with role fabric. `[]` is
	// none.
	//
	// Read by: heddle-device-plugin.
	Resources []RDMAResource `yaml:"resources"`
	// Roles correct what discovery thinks an HCA is for.
	//
	// Read by: every daemon of a node.
	Roles Roles `yaml:"roles"`
}

// RDMAResource is one resource made of HCAs.
type RDMAResource struct {
	// Name is the full name, such as `rdma/hca_shared_devices_ib`.
	Name string `yaml:"name" required:"true"`
	// Sharers is how many containers can share one HCA. The default is 64:
	// RoCE has 128 GIDs on a port, two for each address. With 1 the device ID is
	// the HCA's PCI address, as Multus and CNI plugins need it.
	Sharers int `yaml:"sharers" range:"1-4096"`
	// Count is how a request for n is served: `distinct` n different
	// healthy HCAs, or all there are if they are fewer, with an Event;
	// `strict` the same, but fewer is rejected, and after a minute the pod is
	// evicted if it never started and a controller recreates it; `all` every
	// HCA whatever n is, as older shared-device plugins do.
	Count Count `yaml:"count" enum:"distinct,strict,all"`
	// Selectors choose the HCAs. Without any, HCAs of role fabric are chosen.
	Selectors Selectors `yaml:"selectors"`
}

// Selectors choose HCAs: of every field that is given, one entry must match. Virtual functions are chosen by
// pciAddresses or pfNames only, and functions of NVSwitches never. A physical function with virtual functions in a
// resource is chosen by its own address in pciAddresses only. Names and addresses are globs ("*", "?", "[a-c]").
type Selectors struct {
	// Vendors are PCI vendor numbers, such as `15b3`.
	Vendors []HexID `yaml:"vendors"`
	// DeviceIDs are PCI device numbers, such as `1021` (ConnectX-7).
	DeviceIDs []HexID `yaml:"deviceIDs"`
	// Drivers are kernel drivers, such as `mlx5_core`.
	Drivers []Glob `yaml:"drivers"`
	// IfNames are network devices on the HCA, such as `ens*`.
	IfNames []Glob `yaml:"ifNames"`
	// LinkTypes are the kinds of those network devices; without one, the link layer of the HCA's port decides.
	LinkTypes []string `yaml:"linkTypes" enum:"ether,infiniband"`
	// PCIAddresses are as `lspci -D` prints them: `0000:18:00.0`.
	PCIAddresses []Glob `yaml:"pciAddresses"`
	// PFNames choose virtual functions: RDMA names or network devices of
	// their physical function.
	PFNames []Glob `yaml:"pfNames"`
	// Roles are the purposes of HCAs.
	Roles []machine.Role `yaml:"roles" enum:"fabric,storage,management,virtual"`
}

// Roles are lists of RDMA names or PCI addresses, as globs. The first list
// that has the HCA, in the order below, decides.
type Roles struct {
	// Fabric carries traffic between GPUs of different nodes.
	Fabric []Glob `yaml:"fabric"`
	// Storage carries storage or the cluster's ordinary network.
	Storage []Glob `yaml:"storage"`
	// Management is slow and for operators.
	Management []Glob `yaml:"management"`
}

// Taints are the taints that the node gets, and their effect.
type Taints struct {
	// GPUProduct sets `<vendor>/<card>.product=<product>` on nodes with GPUs.
	// It locks out every DaemonSet that does not tolerate it; `heddle doctor
	// taints --if gpuProduct --node NODE` lists them. On with `preset: scheme`.
	GPUProduct bool `yaml:"gpuProduct"`
	// Effect is the effect of every taint: of gpuProduct, and of those that `usage` and `controlPlane` set.
	Effect Effect `yaml:"effect" enum:"NoSchedule,PreferNoSchedule,NoExecute"`
}

// LabelRule makes one label.
type LabelRule struct {
	// Key is the label's: a valid one, which heddle does not write itself and
	// no other rule makes.
	Key string `yaml:"key" required:"true"`
	// Value is a CEL expression that gives a text. An empty text
	// means no label; an invalid label value means no label and a
	// complaint.
	Value string `yaml:"value" required:"true"`
	// When is a CEL expression that gives true or false; without it the rule
	// always holds.
	When string `yaml:"when"`
}
