package convert

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
)

// nvidia reads version v1 of NVIDIA's device plugin.
func (r *Result) nvidia(root *section) {
	// Without a version it is v1, as to NVIDIA's plugin (api/config/v1, parseConfigFrom).
	known := slices.ContainsFunc([]string{"version", "flags", "sharing", "resources"}, func(key string) bool {
		return root.fields[key] != nil
	})
	if version := cmp.Or(take[string](root, "version"), "v1"); version != "v1" || !known {
		root.failf("%s: %+q is not v1 of NVIDIA's device plugin", root.at("version"), version)
	}
	if strategy := take[string](root.sub("flags"), "migStrategy"); strategy != "" {
		r.keys["migStrategy"] = strategy
	}
	sharing := root.sub("sharing")
	for _, kind := range []string{"timeSlicing", "mps"} {
		r.replicas(sharing.sub(kind), kind == "mps")
	}
}

// nvidiaNodes reads a file for each kind of node: NVIDIA's plugin takes the key that the Node's label names, or else
// the one called default.
func (r *Result) nvidiaNodes(files []*section) {
	isDefault := func(file *section) bool { return file.key == defaultKey }
	if at := slices.IndexFunc(files, isDefault); at >= 0 { // The first entry that matches decides.
		files = append(slices.Delete(slices.Clone(files), at, at+1), files[at])
	}
	for _, file := range files {
		choice := map[string]any{"nodeSelector": map[string]any{"nvidia.com/device-plugin.config": file.key}}
		if isDefault(file) {
			choice = map[string]any{"nodeName": "*"}
		}
		r.node(choice, func(one *Result) { one.nvidia(file) })
	}
}

// defaultKey is the key for Nodes without the label.
const defaultKey = "default"

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
		name := gpuResource
		if renamed {
			name += ".shared"
		}
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
		// NVIDIA's plugin warns of both and ignores them (api/config/v1, DisableResourceNamingInConfig).
		for _, key := range []string{"rename", "devices"} {
			if value, set := entry.fields[key]; set && value != "all" {
				r.notef("%s: NVIDIA's plugin ignores it, and so does this: all GPUs are %s", entry.at(key), name)
			}
			delete(entry.fields, key)
		}
	}
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
	scaling := scale(gpu, "deviceMemoryScaling")
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

// hamiNodes reads config.json, in which HAMi's device plugin has what differs from device-config.yaml on a node.
func (r *Result) hamiNodes(root *section) {
	for _, entry := range root.list("nodeconfig") {
		r.node(map[string]any{"nodeName": take[string](entry, "name")}, func(one *Result) { one.hamiNode(entry) })
	}
}

func (r *Result) hamiNode(entry *section) {
	strategy := take[string](entry, "migstrategy")
	if take[string](entry, "operatingmode") == "mig" {
		r.keys["mode"], r.keys["migStrategy"] = string(config.ModeNative), cmp.Or(strategy, string(config.MIGMixed))
	}
	sgpu := map[string]any{}
	if n := take[int](entry, "devicesplitcount"); n > 0 {
		sgpu["slotsPerGPU"] = r.slots(entry.at("devicesplitcount"), n)
	}
	if scaling := scale(entry, "devicememoryscaling"); scaling > 1 {
		sgpu["memoryOvercommit"] = scaling
	}
	if fmt.Sprint(entry.fields["devicecorescaling"]) == "1" {
		delete(entry.fields, "devicecorescaling")
	}
	filter := entry.sub("filterdevices") // GPUs that HAMi leaves alone.
	if uuids := take[[]any](filter, "uuid"); len(uuids) > 0 {
		r.keys["gpus"] = map[string]any{"exclude": append(uuids, string(config.ExcludeDisplay))}
	}
	if list, ok := filter.fields["index"].([]any); ok && len(list) == 0 { // Indices change when a GPU is lost.
		delete(filter.fields, "index")
	}
	if len(sgpu) > 0 {
		r.keys["sgpu"] = sgpu
	}
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

// scale takes a factor of memory, which may be written as a whole number.
func scale(gpu *section, key string) float64 {
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
