package nvml

import "github.com/heddle-dev/heddle/discovery/gpu"

// XID is the kind of the driver's error reports.
const XID = "XID"

// catalog is NVIDIA's, "Analyzing Xid Errors with the Xid Catalog"
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), by the
// column "Resolution Bucket (Immediate Action)": IGNORE is Ignore, RESTART_APP
// is Application, RESET_GPU, RESTART_BM and RESTART_VM are Fatal. WORKFLOW_…,
// CHECK_… and CONTACT_SUPPORT depend on words of the kernel's log that NVML's
// event lacks, and so are Driver, as is every number that is not listed.
//
// NVIDIA's device plugin (internal/rm/health.go, v0.20.0) ignores 13, 31, 43,
// 45, 68 and 109 and takes every other for fatal until it is restarted
// (NVIDIA/k8s-device-plugin#1974). So it hands out a GPU after 109, which
// needs a reset, and withholds one for good after 94 (a contained memory
// error: restart the application), 63 and 92 (rows remapped, corrected errors)
// and the exceptions of copy, video and JPEG engines.
func catalog() gpu.Catalog {
	return gpu.Catalog{Kind: XID, Rows: []gpu.Row{
		{First: 46, Last: 46, Severity: gpu.Fatal, Text: "the GPU stopped processing"},
		// WORKFLOW_XID_48: alone a reset, with 63 or 64 a drain and a reset.
		{First: 48, Last: 48, Severity: gpu.Fatal, Text: "double-bit ECC error"},
		{First: 62, Last: 62, Severity: gpu.Fatal, Text: "the power management unit halted"},
		{First: 64, Last: 64, Severity: gpu.Fatal, Text: "memory rows could not be remapped"},
		{First: 79, Last: 79, Severity: gpu.Fatal, Text: "the GPU has fallen off the bus"},
		{First: 95, Last: 95, Severity: gpu.Fatal, Text: "uncontained memory error"},
		{First: 109, Last: 109, Severity: gpu.Fatal, Text: "context switch timeout"},
		{First: 110, Last: 110, Severity: gpu.Fatal, Text: "security fault"},
		{First: 119, Last: 119, Severity: gpu.Fatal, Text: "the GPU's system processor (GSP) does not answer"},
		{First: 120, Last: 120, Severity: gpu.Fatal, Text: "the GPU's system processor (GSP) failed"},
		{First: 136, Last: 136, Severity: gpu.Fatal, Text: "NVLink training failed"},
		{First: 140, Last: 140, Severity: gpu.Fatal, Text: "unrecovered ECC error"},
		{First: 143, Last: 143, Severity: gpu.Fatal, Text: "the GPU could not be initialized"},
		{First: 151, Last: 151, Severity: gpu.Fatal, Text: "key rotation failed (confidential computing)"},
		{First: 155, Last: 155, Severity: gpu.Fatal, Text: "NVLink error"},
		{First: 156, Last: 156, Severity: gpu.Fatal, Text: "a part of the GPU was retired: it needs a reset"},
		{First: 158, Last: 158, Severity: gpu.Fatal, Text: "fatal timeout"},
		{First: 8, Last: 8, Severity: gpu.Application, Text: "the GPU stopped processing for an application"},
		{First: 11, Last: 11, Severity: gpu.Application, Text: "corrupted push buffer"},
		{First: 13, Last: 13, Severity: gpu.Application, Text: "graphics engine exception"},
		{First: 25, Last: 25, Severity: gpu.Application, Text: "illegal notification"},
		{First: 31, Last: 31, Severity: gpu.Application, Text: "memory page fault"},
		{First: 32, Last: 32, Severity: gpu.Application, Text: "corrupted push buffer"},
		{First: 39, Last: 41, Severity: gpu.Application, Text: "copy engine exception"},
		// WORKFLOW_XID_45: cleanup that follows another error, which counts.
		{First: 45, Last: 45, Severity: gpu.Application, Text: "cleanup after an earlier error"},
		{First: 60, Last: 60, Severity: gpu.Application, Text: "security engine exception"},
		{First: 68, Last: 68, Severity: gpu.Application, Text: "video decoder exception"},
		{First: 69, Last: 69, Severity: gpu.Application, Text: "graphics engine class error"},
		{First: 70, Last: 72, Severity: gpu.Application, Text: "copy engine exception"},
		{First: 75, Last: 77, Severity: gpu.Application, Text: "copy engine exception"},
		{First: 80, Last: 80, Severity: gpu.Application, Text: "corrupted data sent to the GPU"},
		{First: 82, Last: 82, Severity: gpu.Application, Text: "JPEG engine exception"},
		{First: 83, Last: 84, Severity: gpu.Application, Text: "video decoder exception"},
		{First: 85, Last: 85, Severity: gpu.Application, Text: "copy engine exception"},
		{First: 86, Last: 86, Severity: gpu.Application, Text: "optical flow engine exception"},
		{First: 88, Last: 89, Severity: gpu.Application, Text: "video decoder exception"},
		{First: 94, Last: 94, Severity: gpu.Application, Text: "contained memory error"},
		{First: 96, Last: 98, Severity: gpu.Application, Text: "video decoder exception"},
		{First: 99, Last: 105, Severity: gpu.Application, Text: "JPEG engine exception"},
		{First: 126, Last: 135, Severity: gpu.Application, Text: "copy engine exception"},
		{First: 139, Last: 139, Severity: gpu.Application, Text: "optical flow engine exception"},
		{First: 14, Last: 14, Severity: gpu.Ignore, Text: "test report"},
		{First: 37, Last: 38, Severity: gpu.Ignore, Text: "context switch firmware report"},
		{First: 43, Last: 43, Severity: gpu.Ignore, Text: "a channel of an application was reset"},
		{First: 44, Last: 44, Severity: gpu.Ignore, Text: "fault during a context switch"},
		{First: 63, Last: 63, Severity: gpu.Ignore, Text: "memory rows were remapped"},
		{First: 66, Last: 67, Severity: gpu.Ignore, Text: "context switch firmware report"},
		{First: 92, Last: 92, Severity: gpu.Ignore, Text: "many corrected memory errors"},
		{First: 93, Last: 93, Severity: gpu.Ignore, Text: "the information ROM is worn"},
		{First: 106, Last: 107, Severity: gpu.Ignore, Text: "test report"},
		{First: 108, Last: 108, Severity: gpu.Ignore, Text: "NVLink translation error of a peer"},
		{First: 121, Last: 121, Severity: gpu.Ignore, Text: "corrected error of the link to the processor"},
		{First: 137, Last: 137, Severity: gpu.Ignore, Text: "NVLink privilege error of a peer"},
		{First: 141, Last: 141, Severity: gpu.Ignore, Text: "fast path error"},
		{First: 147, Last: 148, Severity: gpu.Ignore, Text: "NVLink report"},
		{First: 152, Last: 153, Severity: gpu.Ignore, Text: "deep learning accelerator report"},
		{First: 157, Last: 157, Severity: gpu.Ignore, Text: "a part of the GPU could not be retired"},
		{First: 160, Last: 161, Severity: gpu.Ignore, Text: "channel retirement"},
		{First: 54, Last: 54, Severity: gpu.Driver, Text: "auxiliary power is not connected"},
		{First: 74, Last: 74, Severity: gpu.Driver, Text: "NVLink error"},
		{First: 78, Last: 78, Severity: gpu.Driver, Text: "the vGPU could not be started"},
		{First: 142, Last: 142, Severity: gpu.Driver, Text: "video encoder failure"},
		{First: 144, Last: 146, Severity: gpu.Driver, Text: "NVLink error"},
		{First: 149, Last: 150, Severity: gpu.Driver, Text: "NVLink error"},
		// Reports that the action changed; the reader then asks for it.
		{First: 154, Last: 154, Severity: gpu.Driver, Text: "the recovery action changed"},
		{First: 159, Last: 159, Severity: gpu.Driver, Text: "error of the link to the processor"},
		{First: 167, Last: 167, Severity: gpu.Driver, Text: "fatal PCIe timeout"},
		{First: 168, Last: 168, Severity: gpu.Driver, Text: "reduced memory capacity"},
		{First: 171, Last: 171, Severity: gpu.Driver, Text: "uncorrectable error of the memory"},
		{First: 172, Last: 172, Severity: gpu.Driver, Text: "uncorrectable error of on-chip memory"},
	}}
}
