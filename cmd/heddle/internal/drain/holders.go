package drain

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// holder is a pod that has devices which it is to give back.
type holder struct {
	pod *corev1.Pod
	// devices lists the devices that it has, or is about to get: UUIDs of GPUs, names of HCAs,
	// names of resources.
	devices []string
	// kept is the reason why the pod is not evicted; empty if it is.
	kept string
}

func (h *holder) String() string { return h.pod.Namespace + "/" + h.pod.Name }

// holders returns the pods of a node that have one of the GPUs, or, without any, a device of
// heddle. Pods without a controller are kept unless they are forced.
func holders(r *report.Report, pods []corev1.Pod, gpus []string, force bool) []holder {
	var all []holder
	for i := range pods {
		p := &pods[i]
		if cluster.Ended(p) {
			continue
		}
		devices := prepared(r, p, gpus)
		if len(gpus) == 0 && len(devices) == 0 {
			devices = requested(r, p)
		}
		if len(devices) > 0 {
			all = append(all, holder{p, devices, kept(p, force)})
		}
	}
	return all
}

// prepared returns the devices that containers of a pod were given.
func prepared(r *report.Report, p *corev1.Pod, gpus []string) []string {
	var devices []string
	for i := range r.Bindings {
		b := &r.Bindings[i]
		if b.Namespace != p.Namespace || b.Pod != p.Name || b.UID != "" && b.UID != string(p.UID) {
			continue
		}
		devices = append(devices, b.GPUs...)
		for _, share := range b.Shares {
			devices = append(devices, share.UUID)
		}
		if len(gpus) == 0 {
			devices = append(devices, b.HCAs...)
		}
	}
	if len(gpus) > 0 {
		devices = slices.DeleteFunc(devices, func(id string) bool {
			return !slices.ContainsFunc(gpus, func(uuid string) bool { return isOf(r, id, uuid) })
		})
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// isOf reports whether a device is this GPU, or is cut from it.
func isOf(r *report.Report, id, uuid string) bool {
	part, isPart := r.GPUIndices[id]
	whole, isWhole := r.GPUIndices[uuid]
	return id == uuid || machine.PartitionOf(id) == uuid || isPart && isWhole && part == whole
}

// requested returns the resources of heddle that a pod will get devices of.
func requested(r *report.Report, p *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for name := range c.Resources.Limits {
			if slices.ContainsFunc(r.Resources, func(s report.Resource) bool { return s.Name == string(name) }) {
				names = append(names, string(name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kept returns why a pod is not evicted, by the rules of kubectl drain.
func kept(p *corev1.Pod, force bool) string {
	owner := metav1.GetControllerOf(p)
	switch {
	case cluster.IsStatic(p):
		return "it is a static pod"
	case owner != nil && owner.Kind == "DaemonSet":
		return "its DaemonSet would make another one here"
	case owner == nil && !force:
		return "no controller would make another one; --force evicts it"
	}
	return ""
}

// names returns the pods as text.
func names(all []holder) string {
	texts := make([]string, 0, len(all))
	for i := range all {
		texts = append(texts, all[i].String())
	}
	return strings.Join(texts, ", ")
}
