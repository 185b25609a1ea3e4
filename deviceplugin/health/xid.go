package health

import (
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
)

// Policy is what an error report of the driver means for a GPU.
type Policy string

// The policies.
const (
	// Ignore is nobody's business.
	Ignore Policy = "ignore"
	// Application ends the process; the GPU is fit.
	Application Policy = "application"
	// Driver leaves it to the driver's recovery action, because the number
	// alone does not tell: the GPU is fit unless the driver asks for
	// something, and unfit if the driver is too old to be asked.
	Driver Policy = "driver"
	// Fatal makes the GPU unfit until it has recovered.
	Fatal Policy = "fatal"
)

// xid is a row of NVIDIA's catalog, or several that mean the same.
type xid struct {
	first, last uint64
	policy      Policy
	text        string
}

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
func catalog() []xid {
	return slices.Concat(catalogFatal(), catalogApplication(), catalogIgnore(), catalogDriver())
}

func catalogFatal() []xid {
	return []xid{
		{46, 46, Fatal, "the GPU stopped processing"},
		// WORKFLOW_XID_48: alone a reset, with 63 or 64 a drain and a reset.
		{48, 48, Fatal, "double-bit ECC error"},
		{62, 62, Fatal, "the power management unit halted"},
		{64, 64, Fatal, "memory rows could not be remapped"},
		{79, 79, Fatal, "the GPU has fallen off the bus"},
		{95, 95, Fatal, "uncontained memory error"},
		{109, 109, Fatal, "context switch timeout"},
		{110, 110, Fatal, "security fault"},
		{119, 119, Fatal, "the GPU's system processor (GSP) does not answer"},
		{120, 120, Fatal, "the GPU's system processor (GSP) failed"},
		{136, 136, Fatal, "NVLink training failed"},
		{140, 140, Fatal, "unrecovered ECC error"},
		{143, 143, Fatal, "the GPU could not be initialized"},
		{151, 151, Fatal, "key rotation failed (confidential computing)"},
		{155, 155, Fatal, "NVLink error"},
		{156, 156, Fatal, "a part of the GPU was retired: it needs a reset"},
		{158, 158, Fatal, "fatal timeout"},
	}
}

func catalogApplication() []xid {
	return []xid{
		{8, 8, Application, "the GPU stopped processing for an application"},
		{11, 11, Application, "corrupted push buffer"},
		{13, 13, Application, "graphics engine exception"},
		{25, 25, Application, "illegal notification"},
		{31, 31, Application, "memory page fault"},
		{32, 32, Application, "corrupted push buffer"},
		{39, 41, Application, "copy engine exception"},
		// WORKFLOW_XID_45: cleanup that follows another error, which counts.
		{45, 45, Application, "cleanup after an earlier error"},
		{60, 60, Application, "security engine exception"},
		{68, 68, Application, "video decoder exception"},
		{69, 69, Application, "graphics engine class error"},
		{70, 72, Application, "copy engine exception"},
		{75, 77, Application, "copy engine exception"},
		{80, 80, Application, "corrupted data sent to the GPU"},
		{82, 82, Application, "JPEG engine exception"},
		{83, 84, Application, "video decoder exception"},
		{85, 85, Application, "copy engine exception"},
		{86, 86, Application, "optical flow engine exception"},
		{88, 89, Application, "video decoder exception"},
		{94, 94, Application, "contained memory error"},
		{96, 98, Application, "video decoder exception"},
		{99, 105, Application, "JPEG engine exception"},
		{126, 135, Application, "copy engine exception"},
		{139, 139, Application, "optical flow engine exception"},
	}
}

func catalogIgnore() []xid {
	return []xid{
		{14, 14, Ignore, "test report"},
		{37, 38, Ignore, "context switch firmware report"},
		{43, 43, Ignore, "a channel of an application was reset"},
		{44, 44, Ignore, "fault during a context switch"},
		{63, 63, Ignore, "memory rows were remapped"},
		{66, 67, Ignore, "context switch firmware report"},
		{92, 92, Ignore, "many corrected memory errors"},
		{93, 93, Ignore, "the information ROM is worn"},
		{106, 107, Ignore, "test report"},
		{108, 108, Ignore, "NVLink translation error of a peer"},
		{121, 121, Ignore, "corrected error of the link to the processor"},
		{137, 137, Ignore, "NVLink privilege error of a peer"},
		{141, 141, Ignore, "fast path error"},
		{147, 148, Ignore, "NVLink report"},
		{152, 153, Ignore, "deep learning accelerator report"},
		{157, 157, Ignore, "a part of the GPU could not be retired"},
		{160, 161, Ignore, "channel retirement"},
	}
}

// catalogDriver has words for some of the others.
func catalogDriver() []xid {
	return []xid{
		{54, 54, Driver, "auxiliary power is not connected"},
		{74, 74, Driver, "NVLink error"},
		{78, 78, Driver, "the vGPU could not be started"},
		{142, 142, Driver, "video encoder failure"},
		{144, 146, Driver, "NVLink error"},
		{149, 150, Driver, "NVLink error"},
		// Says that the action changed, which is then asked for.
		{154, 154, Driver, "the recovery action changed"},
		{159, 159, Driver, "error of the link to the processor"},
		{167, 167, Driver, "fatal PCIe timeout"},
		{168, 168, Driver, "reduced memory capacity"},
		{171, 171, Driver, "uncorrectable error of the memory"},
		{172, 172, Driver, "uncorrectable error of on-chip memory"},
	}
}

func row(n uint64) (xid, bool) {
	all := catalog()
	i := slices.IndexFunc(all, func(x xid) bool { return x.first <= n && n <= x.last })
	if i < 0 {
		return xid{}, false
	}
	return all[i], true
}

// PolicyOf is what an XID means: what is configured, else NVIDIA's catalog,
// else [Driver].
func PolicyOf(configured *config.XIDs, n uint64) Policy {
	has := func(list []config.XID) bool {
		return slices.ContainsFunc(list, func(x config.XID) bool { return x.Is(n) })
	}
	switch {
	case has(configured.Fatal):
		return Fatal
	case has(configured.Application):
		return Application
	case has(configured.Ignore):
		return Ignore
	}
	if x, ok := row(n); ok {
		return x.policy
	}
	return Driver
}

// XIDText names an XID: "XID 79, the GPU has fallen off the bus".
func XIDText(n uint64) string {
	if x, ok := row(n); ok {
		return fmt.Sprintf("XID %d, %s", n, x.text)
	}
	return fmt.Sprintf("XID %d", n)
}
