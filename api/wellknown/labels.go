package wellknown

import (
	"cmp"
	"slices"
	"strings"
)

// What follows [Domains.GPUKey] in the labels of the accelerator, spelled as
// gpu-feature-discovery spells them.
const (
	GPUProduct         = "product"
	GPUCount           = "count"
	GPUMemory          = "memory"
	GPUFamily          = "family"
	GPUComputeMajor    = "compute.major"
	GPUComputeMinor    = "compute.minor"
	GPUReplicas        = "replicas"
	GPUSharingStrategy = "sharing-strategy"
	GPUMachine         = "machine"
	GPUMode            = "mode"
	GPUClique          = "clique"
	GPUDriverVersion   = "driver-version"
)

// What describes MIG devices: after [Domains.GPUKey] under MIG strategy
// single, after [Domains.MIGKey] under mixed.
const (
	MIGMultiprocessors = "multiprocessors"
	MIGSlicesGI        = "slices.gi"
	MIGSlicesCI        = "slices.ci"
	MIGEnginesCopy     = "engines.copy"
	MIGEnginesDecoder  = "engines.decoder"
	MIGEnginesEncoder  = "engines.encoder"
	MIGEnginesJPEG     = "engines.jpeg"
	MIGEnginesOFA      = "engines.ofa"
)

// What follows [Domains.VendorKey] in labels. The first five are
// gpu-feature-discovery's older spelling, which is still selected on.
const (
	CUDADriverMajor           = "cuda.driver.major"
	CUDADriverMinor           = "cuda.driver.minor"
	CUDADriverRev             = "cuda.driver.rev"
	CUDARuntimeMajor          = "cuda.runtime.major"
	CUDARuntimeMinor          = "cuda.runtime.minor"
	CUDADriverVersionMajor    = "cuda.driver-version.major"
	CUDADriverVersionMinor    = "cuda.driver-version.minor"
	CUDADriverVersionRevision = "cuda.driver-version.revision"
	CUDADriverVersionFull     = "cuda.driver-version.full"
	CUDARuntimeVersionMajor   = "cuda.runtime-version.major"
	CUDARuntimeVersionMinor   = "cuda.runtime-version.minor"
	CUDARuntimeVersionFull    = "cuda.runtime-version.full"
	MIGCapable                = "mig.capable"
	MIGStrategy               = "mig.strategy"
	MPSCapable                = "mps.capable"
	VGPUPresent               = "vgpu.present"
	VGPUHostDriverVersion     = "vgpu.host-driver-version"
	VGPUHostDriverBranch      = "vgpu.host-driver-branch"
)

// AMDLabels returns the labels of AMD's node labeller after [Domains.GPUKey], as
// github.com/ROCm/k8s-device-plugin (cmd/k8s-node-labeller) writes them.
// driver-version is one of heddle's own, with the same meaning.
func AMDLabels() []string {
	return []string{
		"cu-count", "device-id", GPUFamily, "product-name", "simd-count", "vram", "compute-memory-partition",
		"compute-partitioning-supported", "memory-partitioning-supported",
	}
}

// MetaXLabels are labels of MetaX's operator after [Domains.GPUKey], as it writes
// them. product, memory (MiB) and driver-version are heddle's own.
func MetaXLabels() []string {
	return []string{"installed", GPUFamily, "driver.major", "driver.minor", "driver.patch"}
}

// IsPartition reports whether a name belongs to AMD's partitions of one mode, as
// AMD's device plugin writes it after the domain: cpx_nps4.
func IsPartition(name string) bool {
	compute, memory, both := strings.Cut(name, "_")
	return len(compute) == 3 && strings.HasSuffix(compute, "px") && (!both || strings.HasPrefix(memory, "nps"))
}

// maxProfile is the longest MIG profile in a name, in characters.
const maxProfile = 32

// MIGProfile returns a MIG profile as a part of names: 1g.10gb.me of 1g.10gb+me.
func MIGProfile(profile string) string {
	return cmp.Or(Shorten(Value(strings.ReplaceAll(profile, "+", ".")), maxProfile), "unknown")
}

// MIGResource returns the resource of MIG devices of one profile under MIG strategy
// mixed: MIGResource("1g.10gb") is nvidia.com/mig-1g.10gb.
func (d Domains) MIGResource(profile string) string { return d.VendorKey("mig-" + MIGProfile(profile)) }

// MIGResources matches every [Domains.MIGResource].
func (d Domains) MIGResources() string { return d.VendorKey("mig-*") }

// MIGKey returns a label of MIG devices of one profile under MIG strategy mixed.
func (d Domains) MIGKey(profile, suffix string) string { return d.MIGResource(profile) + "." + suffix }

// GPUModelCount returns the label with the number of accelerators of one model,
// written on nodes with several: GPUModelCount("NVIDIA-L40S") is
// nvidia.com/gpu.NVIDIA-L40S.count. The model is a label value.
func (d Domains) GPUModelCount(model string) string { return d.GPUKey(model + "." + GPUCount) }

// NodeLabels lists every label key that discovery writes without rules, sorted by
// kind. A "*" stands for a part that depends on the hardware: a product, a MIG
// profile. See [Match].
func (d Domains) NodeLabels() []string {
	var all []string
	for _, domains := range d.Each() {
		for _, key := range domains.nodeLabels() {
			if !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
	}
	return all
}

func (d Domains) nodeLabels() []string {
	var own []string
	if d.Vendor != DefaultDomains().Vendor {
		own = append(AMDLabels(), MetaXLabels()...)
	}
	mig := []string{
		MIGMultiprocessors, MIGSlicesGI, MIGSlicesCI, MIGEnginesCopy, MIGEnginesDecoder, MIGEnginesEncoder,
		MIGEnginesJPEG, MIGEnginesOFA,
	}
	return slices.Concat(
		keys(d.GPUKey,
			GPUProduct, GPUCount, GPUMemory, GPUFamily, GPUComputeMajor, GPUComputeMinor, GPUReplicas,
			GPUSharingStrategy, GPUMachine, GPUMode, GPUClique, GPUDriverVersion),
		keys(d.GPUKey, mig...),
		keys(d.GPUKey, own...),
		keys(d.GPUModelCount, "*"),
		keys(d.VendorKey,
			CUDADriverMajor, CUDADriverMinor, CUDADriverRev, CUDARuntimeMajor, CUDARuntimeMinor,
			CUDADriverVersionMajor, CUDADriverVersionMinor, CUDADriverVersionRevision, CUDADriverVersionFull,
			CUDARuntimeVersionMajor, CUDARuntimeVersionMinor, CUDARuntimeVersionFull,
			MIGCapable, MIGStrategy, MPSCapable, VGPUPresent, VGPUHostDriverVersion, VGPUHostDriverBranch),
		keys(func(suffix string) string { return d.MIGResources() + "." + suffix },
			append([]string{GPUProduct, GPUCount, GPUReplicas, GPUSharingStrategy, GPUMemory}, mig...)...),
		[]string{
			RDMACount, RDMALinkLayer, RDMARate, RDMAType, RDMANetnsMode, NVLinkDomain, d.Usage(), d.ControlPlane(),
		},
	)
}

func keys(key func(string) string, names ...string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = key(name)
	}
	return all
}

// KubeletLabels returns the labels that a kubelet writes at each start, and
// that state what a node is.
func KubeletLabels() []string {
	return []string{
		"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os",
		"beta.kubernetes.io/arch",
	}
}

// NodeAnnotations lists the annotations that discovery writes on its Node.
func NodeAnnotations() []string { return []string{OwnedTaints, DriverAbsentSince} }

// Match reports whether key is pattern, or pattern with its one "*"
// replaced by one or more characters.
func Match(pattern, key string) bool {
	head, tail, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == key
	}
	return len(key) > len(head)+len(tail) && strings.HasPrefix(key, head) && strings.HasSuffix(key, tail)
}
