package nvml

import (
	"github.com/heddle-dev/heddle/discovery/gpu"
)

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
	c := gpu.Catalog{Kind: XID}
	for severity, rows := range map[gpu.Severity][]row{
		gpu.Fatal: fatal(), gpu.Application: application(), gpu.Ignore: ignored(), gpu.Driver: driver(),
	} {
		for _, r := range rows {
			c.Rows = append(c.Rows, gpu.Row{First: r.first, Last: r.last, Severity: severity, Text: r.text})
		}
	}
	return c
}

// row is one of the catalog's; its numbers are in no other.
type row struct {
	first, last uint64
	text        string
}

func fatal() []row {
	return []row{
		{46, 46, "the GPU stopped processing"},
		// WORKFLOW_XID_48: alone a reset, with 63 or 64 a drain and a reset.
		{48, 48, "double-bit ECC error"},
		{62, 62, "the power management unit halted"},
		{64, 64, "memory rows could not be remapped"},
		{79, 79, "the GPU has fallen off the bus"},
		{95, 95, "uncontained memory error"},
		{109, 109, "context switch timeout"},
		{110, 110, "security fault"},
		{119, 119, "the GPU's system processor (GSP) does not answer"},
		{120, 120, "the GPU's system processor (GSP) failed"},
		{136, 136, "NVLink training failed"},
		{140, 140, "unrecovered ECC error"},
		{143, 143, "the GPU could not be initialized"},
		{151, 151, "key rotation failed (confidential computing)"},
		{155, 155, "NVLink error"},
		{156, 156, "a part of the GPU was retired: it needs a reset"},
		{158, 158, "fatal timeout"},
	}
}

func application() []row {
	return []row{
		{8, 8, "the GPU stopped processing for an application"},
		{11, 11, "corrupted push buffer"},
		{13, 13, "graphics engine exception"},
		{25, 25, "illegal notification"},
		{31, 31, "memory page fault"},
		{32, 32, "corrupted push buffer"},
		{39, 41, "copy engine exception"},
		// WORKFLOW_XID_45: cleanup that follows another error, which counts.
		{45, 45, "cleanup after an earlier error"},
		{60, 60, "security engine exception"},
		{68, 68, "video decoder exception"},
		{69, 69, "graphics engine class error"},
		{70, 72, "copy engine exception"},
		{75, 77, "copy engine exception"},
		{80, 80, "corrupted data sent to the GPU"},
		{82, 82, "JPEG engine exception"},
		{83, 84, "video decoder exception"},
		{85, 85, "copy engine exception"},
		{86, 86, "optical flow engine exception"},
		{88, 89, "video decoder exception"},
		{94, 94, "contained memory error"},
		{96, 98, "video decoder exception"},
		{99, 105, "JPEG engine exception"},
		{126, 135, "copy engine exception"},
		{139, 139, "optical flow engine exception"},
	}
}

func ignored() []row {
	return []row{
		{14, 14, "test report"},
		{37, 38, "context switch firmware report"},
		{43, 43, "a channel of an application was reset"},
		{44, 44, "fault during a context switch"},
		{63, 63, "memory rows were remapped"},
		{66, 67, "context switch firmware report"},
		{92, 92, "many corrected memory errors"},
		{93, 93, "the information ROM is worn"},
		{106, 107, "test report"},
		{108, 108, "NVLink translation error of a peer"},
		{121, 121, "corrected error of the link to the processor"},
		{137, 137, "NVLink privilege error of a peer"},
		{141, 141, "fast path error"},
		{147, 148, "NVLink report"},
		{152, 153, "deep learning accelerator report"},
		{157, 157, "a part of the GPU could not be retired"},
		{160, 161, "channel retirement"},
	}
}

// driver has words for some of the others.
func driver() []row {
	return []row{
		{54, 54, "auxiliary power is not connected"},
		{74, 74, "NVLink error"},
		{78, 78, "the vGPU could not be started"},
		{142, 142, "video encoder failure"},
		{144, 146, "NVLink error"},
		{149, 150, "NVLink error"},
		// Reports that the action changed; the reader then asks for it.
		{154, 154, "the recovery action changed"},
		{159, 159, "error of the link to the processor"},
		{167, 167, "fatal PCIe timeout"},
		{168, 168, "reduced memory capacity"},
		{171, 171, "uncorrectable error of the memory"},
		{172, 172, "uncorrectable error of on-chip memory"},
	}
}
