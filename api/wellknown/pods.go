package wellknown

// UseGPUUUID is the pod annotation with the UUIDs of the GPUs that the pod
// accepts, as a comma list: nvidia.com/use-gpuuuid.
func (d Domains) UseGPUUUID() string { return d.VendorKey(useGPUUUID) }

// NoUseGPUUUID is the pod annotation with the UUIDs of the GPUs that the pod
// rejects, as a comma list: nvidia.com/nouse-gpuuuid.
func (d Domains) NoUseGPUUUID() string { return d.VendorKey(noUseGPUUUID) }

// SGPUQoSPolicy is the pod annotation with the policy of the pod's shares,
// fixed-share, burst-share or best-effort: nvidia.com/sgpu-qos-policy.
func (d Domains) SGPUQoSPolicy() string { return d.VendorKey(sgpuQoSPolicy) }

// SGPUPlacement is the pod annotation for which GPU, and which node, the
// pod's shares go to first: binpack, used ones, or spread, the others.
const SGPUPlacement = Prefix + "sgpu-placement"

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
