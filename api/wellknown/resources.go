package wellknown

// GPUResource is the whole accelerator: nvidia.com/gpu.
func (d Domains) GPUResource() string { return d.VendorKey(d.GPU) }

// SGPUResource is a share of an accelerator: nvidia.com/sgpu.
func (d Domains) SGPUResource() string { return d.VendorKey("sgpu") }

// VCoreResource is percent of one accelerator's compute: nvidia.com/vcore.
func (d Domains) VCoreResource() string { return d.VendorKey("vcore") }

// VMemoryResource is GiB of one accelerator's memory: nvidia.com/vmemory.
func (d Domains) VMemoryResource() string { return d.VendorKey("vmemory") }

// RDMAResource is the default resource of RDMA HCAs, the one that the field's
// MPI Jobs ask for.
const RDMAResource = "rdma/hca_shared_devices_ib"
