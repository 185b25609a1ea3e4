// Package wellknown spells every label, taint, annotation, resource name, condition
// and reason of an Event of heddle. Names that operators may move to a domain of their own are built
// from [Domains]; the others are constants. No other package spells a key.
package wellknown

// Domains are the prefixes of configurable names.
type Domains struct {
	// Vendor is the DNS domain of names that describe the hardware: the part before the slash in
	// nvidia.com/gpu.product. `auto` is the domain of the vendor of each node's GPUs: nvidia.com, amd.com or
	// metax-tech.com.
	Vendor string `yaml:"vendor" json:"vendor"`
	// GPU is the word for the accelerator in those names.
	GPU string `yaml:"card" json:"card"`
	// Company is the DNS domain of names that the operator chooses, such as heddle.dev/node.usage.
	Company string `yaml:"company" json:"company"`
}

// VendorAuto as Domains.Vendor is the domain of the maker of each node's GPUs.
const VendorAuto = "auto"

// Vendor is a supported maker of GPUs: the domain of its names, and its number
// on the PCI bus as sysfs writes it.
type Vendor struct{ Domain, PCI string }

// Vendors returns all makers, in the order of preference.
func Vendors() []Vendor {
	return []Vendor{
		{Domain: DefaultDomains().Vendor, PCI: "0x10de"}, {Domain: "amd.com", PCI: "0x1002"}, {Domain: MetaX, PCI: "0x9999"},
	}
}

// MetaX is the domain of MetaX's resources.
const MetaX = "metax-tech.com"

// Each lists the domains that a node can have.
func (d Domains) Each() []Domains {
	if d.Vendor != VendorAuto {
		return []Domains{d}
	}
	var all []Domains
	for _, vendor := range Vendors() {
		d.Vendor = vendor.Domain
		all = append(all, d)
	}
	return all
}

// DefaultDomains returns the domains that common charts and Jobs use.
func DefaultDomains() Domains {
	return Domains{Vendor: "nvidia.com", GPU: "gpu", Company: "heddle.dev"}
}

// AutoDomains returns the default domains, with the names of each vendor's GPUs.
func AutoDomains() Domains {
	d := DefaultDomains()
	d.Vendor = VendorAuto
	return d
}

// GPUKey returns a label of the accelerator: GPUKey("product") is
// nvidia.com/gpu.product.
func (d Domains) GPUKey(suffix string) string { return d.Vendor + "/" + d.GPU + "." + suffix }

// VendorKey returns a label or resource of the vendor: VendorKey("sgpu") is
// nvidia.com/sgpu, VendorKey("mig.capable") is nvidia.com/mig.capable.
func (d Domains) VendorKey(name string) string { return d.Vendor + "/" + name }

// CompanyKey returns a label of the operator: CompanyKey("node.usage") is
// heddle.dev/node.usage.
func (d Domains) CompanyKey(name string) string { return d.Company + "/" + name }

// FieldManager owns heddle's labels in the Node's managedFields.
const FieldManager = "heddle-feature-discovery"

// Prefix is the domain of the names that no configuration moves.
const Prefix = "heddle.dev/"

// Labels of the node's RDMA side and its NVLink domain.
const (
	RDMACount     = Prefix + "rdma.hca.count"
	RDMALinkLayer = Prefix + "rdma.hca.link-layer"
	RDMARate      = Prefix + "rdma.hca.rate"
	RDMAType      = Prefix + "rdma.hca.type"
	RDMANetnsMode = Prefix + "rdma.netns-mode"
	NVLinkDomain  = Prefix + "nvlink.domain"
)

// The labels of `heddle fabric test --label`: the day of the last test, and the least bandwidth of a port in it, in
// Gb/s.
const (
	FabricTested    = Prefix + "fabric.tested"
	FabricBandwidth = Prefix + "fabric.bandwidth"
)

// TopologyLabels matches the labels that topo-master writes on Nodes.
const TopologyLabels = TopologyPrefix + "*"

// TopologyPrefix begins the labels of the groups that hold a Node; TopologyShape lists the kinds of
// these groups.
const (
	TopologyPrefix = Prefix + "topology."
	TopologyShape  = Prefix + "topology-shape"
)

// GPUTopology is the Node annotation that reports to schedulers what a request for
// n GPUs would get of the node now, and what that would cost the rest, as JSON:
// {"n": {"score": …, "loss": …, "hcas": …}}. See deviceplugin/preferred.
const GPUTopology = Prefix + "gpu-topology"

// FreeGPUs is the Node annotation that reports to schedulers which whole GPUs of the
// node are free, by UUID; see api/allocation.
const FreeGPUs = Prefix + "free-gpus"

// HCACounts is the Node annotation that reports to schedulers how many different HCAs
// one container can have, by resource; see api/allocation.
const HCACounts = Prefix + "hca-counts"

// The annotations of shares of a GPU; their values are in api/allocation.
const (
	// SGPUAllocation is on a pod: the GPUs that heddle-scheduler chose.
	SGPUAllocation = Prefix + "sgpu-allocation"
	// SGPUBound is on a pod: the GPUs that its containers have, as its node
	// bound them.
	SGPUBound = Prefix + "sgpu-bound"
	// SharedGPUs is on a Node: its shared GPUs and the use of each.
	SharedGPUs = Prefix + "sgpu-cards"
)

// CordonedGPUs is the Node annotation with the UUIDs of the GPUs that no new
// pod gets, as a comma list. `heddle gpu cordon` writes it.
const CordonedGPUs = Prefix + "cordoned-gpus"

// GPURelease is the Node annotation that asks heddle to let go of the GPUs' driver
// for a time, and GPUReleaseStatus the device plugin's answer; their values are in
// api/release. `heddle gpu release` writes the first.
const (
	GPURelease       = Prefix + "gpu-release"
	GPUReleaseStatus = Prefix + "gpu-release-status"
)

// GPUResource returns the whole accelerator: nvidia.com/gpu.
func (d Domains) GPUResource() string { return d.VendorKey(d.GPU) }

// SGPUResource returns a share of an accelerator: nvidia.com/sgpu.
func (d Domains) SGPUResource() string { return d.VendorKey("sgpu") }

// VCoreResource is percent of one accelerator's compute: nvidia.com/vcore.
func (d Domains) VCoreResource() string { return d.VendorKey("vcore") }

// VMemoryResource is GiB of one accelerator's memory: nvidia.com/vmemory.
func (d Domains) VMemoryResource() string { return d.VendorKey("vmemory") }

// RDMAResource is the default resource of RDMA HCAs, the one that the field's
// MPI Jobs ask for.
const RDMAResource = "rdma/hca_shared_devices_ib"

// UseGPUUUID returns the pod annotation with the UUIDs of the GPUs that the pod
// accepts, as a comma list: nvidia.com/use-gpuuuid.
func (d Domains) UseGPUUUID() string { return d.VendorKey(useGPUUUID) }

// NoUseGPUUUID returns the pod annotation with the UUIDs of the GPUs that the pod
// rejects, as a comma list: nvidia.com/nouse-gpuuuid.
func (d Domains) NoUseGPUUUID() string { return d.VendorKey(noUseGPUUUID) }

// SGPUQoSPolicy returns the pod annotation with the policy of the pod's shares,
// fixed-share, burst-share or best-effort: nvidia.com/sgpu-qos-policy.
func (d Domains) SGPUQoSPolicy() string { return d.VendorKey(sgpuQoSPolicy) }

// SGPUPlacement is the pod annotation for which GPU, and which node, the
// pod's shares go to first: binpack, used ones, or spread, the others.
const SGPUPlacement = Prefix + "sgpu-placement"

// IMEXChannels is the pod annotation with the IMEX channels that the pod's containers
// with GPUs get, as a comma list of numbers, where nodes give them by request.
const IMEXChannels = Prefix + "imex-channels"

// The spelling of the same annotations by the sGPU scheme of the field.
const (
	SGPUQoSPolicyAlias = "metax-tech.com/" + sgpuQoSPolicy

	UseGPUUUIDAlias   = "metax-tech.com/" + useGPUUUID
	NoUseGPUUUIDAlias = "metax-tech.com/" + noUseGPUUUID
)

const (
	useGPUUUID   = "use-gpuuuid"
	noUseGPUUUID = "nouse-gpuuuid"

	sgpuQoSPolicy = "sgpu-qos-policy"
)
