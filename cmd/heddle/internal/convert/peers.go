package convert

import (
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// nvidia reads version v1 of NVIDIA's device plugin.
func (r *Result) nvidia(root *section) error {
	if version, err := take[string](root, "version"); err != nil || version != "v1" {
		return fmt.Errorf("version: %+q is not v1 of NVIDIA's device plugin", version)
	}
	flags, err := root.sub("flags")
	if err != nil {
		return err
	}
	strategy, err := take[string](flags, "migStrategy")
	if err != nil {
		return err
	}
	if strategy != "" {
		r.keys["mig"] = map[string]any{"strategy": strategy}
	}
	sharing, err := root.sub("sharing")
	if err != nil {
		return err
	}
	for _, kind := range []string{"timeSlicing", "mps"} {
		below, err := sharing.sub(kind)
		if err != nil {
			return err
		}
		if err := r.replicas(below, kind == "mps"); err != nil {
			return err
		}
	}
	return nil
}

// replicas reads sharing.timeSlicing or sharing.mps. Whole GPUs have one number
// of slots; MIG devices are not shared. Pods go on as they are: a slot has its part
// of the memory, and with MPS of the compute.
func (r *Result) replicas(sharing *section, mps bool) error {
	entries, err := sharing.list("resources")
	if err != nil {
		return err
	}
	renamed, err := take[bool](sharing, "renameByDefault")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.fields["name"]; name != gpuResource && name != "gpu" || r.keys["sgpu"] != nil {
			continue
		}
		delete(entry.fields, "name")
		name, err := shareName(entry, renamed)
		if err != nil {
			return err
		}
		n, err := take[int](entry, "replicas")
		if err != nil {
			return err
		}
		if n < 2 {
			return fmt.Errorf("%s: %d is not 2 replicas or more", entry.at("replicas"), n)
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
	return nil
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

// shareName is what NVIDIA's plugin calls a slot.
func shareName(entry *section, renamed bool) (string, error) {
	name, err := take[string](entry, "rename")
	switch {
	case name == "" && renamed:
		name = gpuResource + ".shared"
	case name == "":
		name = gpuResource
	case !strings.Contains(name, "/"):
		name = wellknown.DefaultDomains().VendorKey(name)
	}
	return name, err
}

// gpuResource is NVIDIA's name of a GPU, and HAMi's of a share.
const gpuResource = "nvidia.com/gpu"

// hami reads device-config.yaml.
func (r *Result) hami(root *section) error {
	if root.fields["nvidia"] == nil {
		return fmt.Errorf("nvidia: HAMi's section of NVIDIA's GPUs is absent")
	}
	gpu, err := root.sub("nvidia")
	if err != nil {
		return err
	}
	// As heddle does it: compute is no more than it is, and a pod has a GPU that names a part of one.
	for _, key := range []string{"deviceCoreScaling", "defaultGPUNum"} {
		if fmt.Sprint(gpu.fields[key]) == "1" {
			delete(gpu.fields, key)
		}
	}
	scaling, err := scale(gpu)
	if err != nil {
		return err
	}
	slots, err := take[int](gpu, "deviceSplitCount")
	if err != nil {
		return err
	}
	if slots == 0 {
		slots = 10 // HAMi's own default.
	}
	if slots < 0 {
		return fmt.Errorf("%s: %d is negative", gpu.at("deviceSplitCount"), slots)
	}
	sgpu := r.share(gpu.at("deviceSplitCount"), slots)
	// A pod without cores has no limit of compute in HAMi, but for this.
	vcore, err := take[int](gpu, "defaultCores")
	if err != nil {
		return err
	}
	defaults := map[string]any{"vcore": vcore}
	sgpu["defaults"] = defaults
	if scaling > 1 {
		sgpu["memoryOvercommit"] = scaling
		r.notef("%s: one container has at most what the GPU has, and percent are of that; nothing goes to host memory",
			gpu.at("deviceMemoryScaling"))
	}
	if err := r.hamiNames(gpu); err != nil {
		return err
	}
	return r.hamiMemory(gpu, defaults)
}

// hamiMemory carries over defaultMemory, which is MiB whatever the unit of the resource is; 0
// is all memory. It follows hamiNames.
func (r *Result) hamiMemory(gpu *section, defaults map[string]any) error {
	memory, err := take[int](gpu, "defaultMemory")
	switch {
	case err != nil:
		return err
	case memory < 0:
		return fmt.Errorf("%s: %d is negative", gpu.at("defaultMemory"), memory)
	case memory == 0:
		return nil
	}
	resources, _ := r.keys["resources"].(map[string]any)
	if resources["vmemoryUnit"] != string(config.MiB) {
		const gib = 1024
		if memory%gib != 0 {
			r.notef("%s: %d MiB are no whole number of GiB, and rounded up", gpu.at("defaultMemory"), memory)
		}
		memory = (memory + gib - 1) / gib
	}
	defaults["vmemory"] = memory
	return nil
}

// scale takes deviceMemoryScaling, which may be written as a whole number.
func scale(gpu *section) (float64, error) {
	const key = "deviceMemoryScaling"
	if n, whole := gpu.fields[key].(int); whole {
		gpu.fields[key] = float64(n)
	}
	if n, ok := gpu.fields[key].(float64); ok && (n < 1 || n > config.MaxMemoryOvercommit) {
		return 0, nil // It stays, and is reported as not carried over.
	}
	return take[float64](gpu, key)
}

// hamiNames carries over the names of resources, and the unit of memory.
func (r *Result) hamiNames(gpu *section) error {
	factor, err := take[int](gpu, "memoryFactor")
	if err != nil {
		return err
	}
	unit := config.MiB
	switch factor {
	case 0, 1:
	case 1024:
		unit = config.GiB
	default:
		return fmt.Errorf("%s: a unit of %d MiB is neither %s nor %s", gpu.at("memoryFactor"), factor, config.MiB, config.GiB)
	}
	resources := map[string]any{}
	for _, name := range []struct{ theirs, ours string }{
		{"resourceCountName", "sgpu"},
		{"resourceCoreName", "vcore"},
		{"resourceMemoryName", "vmemory"},
		{"resourceMemoryPercentageName", "vmemoryPercentage"},
	} {
		value, err := take[string](gpu, name.theirs)
		if err != nil {
			return err
		}
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
	return nil
}

// maxSharers is the end of the range of rdma.resources.sharers.
const maxSharers = 4096

// mellanox reads config.json.
func (r *Result) mellanox(root *section) error {
	if root.fields["configList"] == nil {
		return fmt.Errorf("configList: absent, so this is no config.json of k8s-rdma-shared-dev-plugin")
	}
	entries, err := root.list("configList")
	if err != nil {
		return err
	}
	resources := []any{}
	for _, entry := range entries {
		resource, err := r.rdma(entry)
		if err != nil {
			return err
		}
		resources = append(resources, resource)
	}
	r.keys["rdma"] = map[string]any{"resources": resources}
	return nil
}

func (r *Result) rdma(entry *section) (map[string]any, error) {
	name, err := take[string](entry, "resourceName")
	if err != nil {
		return nil, err
	}
	prefix, err := take[string](entry, "resourcePrefix")
	if err != nil {
		return nil, err
	}
	if prefix == "" {
		prefix = "rdma"
	}
	sharers, err := take[int](entry, "rdmaHcaMax")
	if err != nil {
		return nil, err
	}
	if sharers < 1 {
		return nil, fmt.Errorf("%s: %d gives no container an HCA", entry.at("rdmaHcaMax"), sharers)
	}
	r.notef("%s: %d is of the resource there, and of each HCA here", entry.at("rdmaHcaMax"), sharers)
	if sharers > maxSharers {
		r.notef("%s: %d is more than %d sharers", entry.at("rdmaHcaMax"), sharers, maxSharers)
		sharers = maxSharers
	}
	selectors, err := entry.sub("selectors")
	if err != nil {
		return nil, err
	}
	// devices is what selectors.ifNames was called before there were selectors.
	if len(selectors.fields) == 0 && entry.fields["devices"] != nil {
		selectors.fields = map[string]any{"ifNames": entry.fields["devices"]}
		delete(entry.fields, "devices")
	}
	wanted := map[string]any{}
	for _, key := range []string{"vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"} {
		values, err := take[[]any](selectors, key)
		if err != nil {
			return nil, err
		}
		if len(values) > 0 {
			wanted[key] = values
		}
	}
	if len(wanted) == 0 {
		r.notef("%s: no selectors, so the resource is of all HCAs with role fabric", entry.path)
	}
	// count: all is what that plugin gives: every HCA, whatever number is asked.
	return map[string]any{
		"name": prefix + "/" + name, "sharers": sharers, "count": "all", "selectors": wanted,
	}, nil
}
