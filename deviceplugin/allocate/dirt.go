package allocate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Occupant is a process on a GPU. Command is as the kernel has it, cut to 15 bytes.
type Occupant struct {
	gpu.Process

	Command string
	// Pod is the UID of its pod, empty for a process of none; Ended is whether the pod has ended.
	Pod   string
	Ended bool
}

// Dirt describes what keeps a GPU from its next pod, of all that is on it: "process 4711 (python) of pod 5ef… with 2048
// MiB"; empty if nothing does. users are the UIDs of the pods that have a part of it and may have started. used is the
// memory in use, -1 if unknown, and idle the most without a process. unseen is set for memory of no process in on.
// Dirt keeps pods from starting, so doubtful cases do not count. The process of a pod that has ended is dirt. On a GPU
// without users, so are a process of no pod with a compute context, and memory that no known process has.
func Dirt(on []Occupant, used, idle int64, users map[string]bool) (what string, unseen bool) {
	// monitors begin the commands of programs that have compute contexts without the work of a pod: MPS, which a new
	// client may use, and programs that measure or manage GPUs.
	monitors := []string{
		"nvidia-cuda-mps", "nv-hostengine", "dcgm", "nvidia-persiste", "nv-fabricmanage", "rdcd", "gpuagent", "amd-smi",
		"rocm-smi",
	}
	var dirt []string
	for _, o := range on {
		monitor := slices.ContainsFunc(monitors, func(name string) bool { return strings.HasPrefix(o.Command, name) })
		switch {
		case o.Pod != "" && (!o.Ended || users[o.Pod]):
			continue
		case o.Pod == "" && (len(users) > 0 || o.Passive || monitor):
			continue
		}
		dirt = append(dirt, fmt.Sprintf(
			"process %d (%s) of pod %s with %d MiB", o.PID, o.Command, cmp.Or(o.Pod, "none"), max(o.Bytes, 0)>>20))
	}
	if len(dirt) > 0 || len(users) > 0 || used < 0 {
		return strings.Join(dirt, ", "), false
	}
	for _, o := range on {
		if used -= o.Bytes; o.Bytes < 0 {
			return "", false // It may have all.
		}
	}
	if used <= idle {
		return "", false
	}
	return fmt.Sprintf("%d MiB of no visible process", used>>20), true
}
