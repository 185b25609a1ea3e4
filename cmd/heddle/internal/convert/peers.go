package convert

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// nvidia reads version v1 of NVIDIA's device plugin.
func (r *Result) nvidia(root *section) {
	version, _ := root.fields["version"].(string)
	delete(root.fields, "version")
	if version != "v1" {
		root.failf("version: %+q is not v1 of NVIDIA's device plugin", version)
	}
	if strategy := take[string](root.sub("flags"), "migStrategy"); strategy != "" {
		r.keys["migStrategy"] = strategy
	}
	sharing := root.sub("sharing")
	for _, kind := range []string{"timeSlicing", "mps"} {
		r.replicas(sharing.sub(kind), kind == "mps")
	}
}

// replicas reads sharing.timeSlicing or sharing.mps. Whole GPUs have one number
// of slots; MIG devices are not shared. Pods go on as they are: a slot has its part
// of the memory, and with MPS of the compute.
func (r *Result) replicas(sharing *section, mps bool) {
	entries := sharing.list("resources")
	renamed := take[bool](sharing, "renameByDefault")
	for _, entry := range entries {
		if name := entry.fields["name"]; name != gpuResource && name != "gpu" || r.keys["sgpu"] != nil {
			continue
		}
		delete(entry.fields, "name")
		name := shareName(entry, renamed)
		n := take[int](entry, "replicas")
		if n < 2 {
			entry.failf("%s: %d is not 2 replicas or more", entry.at("replicas"), n)
			return
		}
		sgpu, part := r.share(entry.at("replicas"), n), max(100/n, 1)
		r.keys["resources"] = map[string]any{"sgpu": name}
		// Time-slicing limits nothing; memory is counted all the same, since no GPU is over-committed.
		enforcer, vcore := "none", 0
		if mps {
			enforcer, vcore = "mps", part
		}
		sgpu["enforce"] = map[string]any{"memory": enforcer, "compute": enforcer}
		sgpu["defaults"] = map[string]any{"vcore": vcore, "vmemoryPercentage": part}
		r.devices(entry, name, sgpu)
	}
}

// devices are the GPUs that are shared under a name.
func (r *Result) devices(entry *section, name string, sgpu map[string]any) {
	switch devices := entry.fields["devices"].(type) {
	case string:
		if devices == "all" {
			delete(entry.fields, "devices")
		}
	case []any:
		delete(entry.fields, "devices")
		sgpu["gpus"] = devices
		if name == gpuResource {
			r.notef("%s: the other GPUs are %s.exclusive here, not %s", entry.at("devices"), name, name)
		}
	}
}

// shareName is NVIDIA's name of a slot.
func shareName(entry *section, renamed bool) string {
	name := take[string](entry, "rename")
	switch {
	case name == "" && renamed:
		return gpuResource + ".shared"
	case name == "":
		return gpuResource
	case !strings.Contains(name, "/"):
		return wellknown.DefaultDomains().VendorKey(name)
	}
	return name
}

// gpuResource is NVIDIA's name of a GPU, and HAMi's of a share.
const gpuResource = "nvidia.com/gpu"

// hami reads device-config.yaml.
func (r *Result) hami(root *section) {
	if root.fields["nvidia"] == nil {
		root.failf("nvidia: HAMi's section of NVIDIA's GPUs is absent")
	}
	gpu := root.sub("nvidia")
	// As heddle does it: compute is no more than it is, and a pod has a GPU that names a part of one.
	for _, key := range []string{"deviceCoreScaling", "defaultGPUNum"} {
		if fmt.Sprint(gpu.fields[key]) == "1" {
			delete(gpu.fields, key)
		}
	}
	scaling := scale(gpu)
	slots := cmp.Or(take[int](gpu, "deviceSplitCount"), 10) // HAMi's own default.
	if slots < 0 {
		gpu.failf("%s: %d is negative", gpu.at("deviceSplitCount"), slots)
	}
	sgpu := r.share(gpu.at("deviceSplitCount"), slots)
	// A pod without cores has no limit of compute in HAMi, but for this.
	defaults := map[string]any{"vcore": take[int](gpu, "defaultCores")}
	sgpu["defaults"] = defaults
	if scaling > 1 {
		sgpu["memoryOvercommit"] = scaling
		r.notef("%s: one container has at most what the GPU has, and percent are of that; nothing goes to host memory",
			gpu.at("deviceMemoryScaling"))
	}
	r.hamiNames(gpu)
	r.hamiMemory(gpu, defaults)
}

// hamiMemory carries over defaultMemory, which is MiB whatever the unit of the resource is; 0
// is all memory. It follows hamiNames.
func (r *Result) hamiMemory(gpu *section, defaults map[string]any) {
	memory := take[int](gpu, "defaultMemory")
	if memory < 0 {
		gpu.failf("%s: %d is negative", gpu.at("defaultMemory"), memory)
	}
	if memory <= 0 {
		return
	}
	resources, _ := r.keys["resources"].(map[string]any)
	if resources["vmemoryUnit"] != string(config.MiB) {
		const gib = 1024
		if memory%gib != 0 {
			r.notef("%s: %d MiB is not a whole number of GiB, and rounded up", gpu.at("defaultMemory"), memory)
		}
		memory = (memory + gib - 1) / gib
	}
	defaults["vmemory"] = memory
}

// scale takes deviceMemoryScaling, which may be written as a whole number.
func scale(gpu *section) float64 {
	const key = "deviceMemoryScaling"
	if n, whole := gpu.fields[key].(int); whole {
		gpu.fields[key] = float64(n)
	}
	if n, ok := gpu.fields[key].(float64); ok && (n < 1 || n > config.MaxMemoryOvercommit) {
		return 0 // It stays, and is reported as not carried over.
	}
	return take[float64](gpu, key)
}

// hamiNames carries over the names of resources, and the unit of memory.
func (r *Result) hamiNames(gpu *section) {
	unit := config.MiB
	switch factor := take[int](gpu, "memoryFactor"); factor {
	case 0, 1:
	case 1024:
		unit = config.GiB
	default:
		gpu.failf("%s: a unit of %d MiB is neither %s nor %s", gpu.at("memoryFactor"), factor, config.MiB, config.GiB)
	}
	resources := map[string]any{}
	for _, name := range []struct{ theirs, ours string }{
		{"resourceCountName", "sgpu"},
		{"resourceCoreName", "vcore"},
		{"resourceMemoryName", "vmemory"},
		{"resourceMemoryPercentageName", "vmemoryPercentage"},
	} {
		value := take[string](gpu, name.theirs)
		if value == "" {
			continue
		}
		resources[name.ours] = value
		switch {
		case name.ours == "sgpu" && value == gpuResource:
			r.notef("%s: a GPU to itself is %s.exclusive here", gpu.at(name.theirs), value)
		case name.ours == "vmemory":
			resources["vmemoryUnit"] = string(unit)
			r.notef("%s: of schedulers, heddle-scheduler alone counts %+q here", gpu.at(name.theirs), value)
		}
	}
	if len(resources) > 0 {
		r.keys["resources"] = resources
	}
}

// maxSharers is the end of the range of rdma.resources.sharers.
const maxSharers = 4096

// mellanox reads config.json.
func (r *Result) mellanox(root *section) {
	if root.fields["configList"] == nil {
		root.failf("configList is missing: not a config.json of k8s-rdma-shared-dev-plugin")
	}
	resources := []any{}
	for _, entry := range root.list("configList") {
		resources = append(resources, r.rdma(entry))
	}
	r.keys["rdma"] = map[string]any{"resources": resources}
}

func (r *Result) rdma(entry *section) map[string]any {
	name := take[string](entry, "resourceName")
	prefix := cmp.Or(take[string](entry, "resourcePrefix"), "rdma")
	sharers := take[int](entry, "rdmaHcaMax")
	if sharers < 1 {
		entry.failf("%s: %d gives no container an HCA", entry.at("rdmaHcaMax"), sharers)
	}
	r.notef("%s: %d is of the resource there, and of each HCA here", entry.at("rdmaHcaMax"), sharers)
	if sharers > maxSharers {
		r.notef("%s: %d is more than %d sharers", entry.at("rdmaHcaMax"), sharers, maxSharers)
		sharers = maxSharers
	}
	selectors := entry.sub("selectors")
	// devices is the former name of selectors.ifNames.
	if len(selectors.fields) == 0 && entry.fields["devices"] != nil {
		selectors.fields = map[string]any{"ifNames": entry.fields["devices"]}
		delete(entry.fields, "devices")
	}
	wanted := map[string]any{}
	for _, key := range []string{"vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"} {
		if values := take[[]any](selectors, key); len(values) > 0 {
			wanted[key] = values
		}
	}
	if len(wanted) == 0 {
		r.notef("%s: no selectors, so the resource is of all HCAs with role fabric", entry.path)
	}
	// That plugin always gives every HCA, as count: all does.
	return map[string]any{
		"name": prefix + "/" + name, "sharers": sharers, "count": "all", "selectors": wanted,
	}
}
