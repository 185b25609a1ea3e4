package allocate

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// maxQuoted bounds the quoted part of an annotation in an error, in bytes.
const maxQuoted = 128

// channels returns the device nodes of the IMEX channels that a container with GPUs gets
// because its pod asks for them; none where that is not how containers get them. pod is nil
// if it is not known: then the container waits, since it may be one that must have them, or
// one with an annotation that is rejected.
func (n *Node) channels(
	c kubelet.Container, held []kubelet.Allocation, pod *corev1.Pod,
) ([]*specs.DeviceNode, error) {
	offered := n.Inventory.Channels
	if offered == nil || !slices.ContainsFunc(held, n.hasGPUs) {
		return nil, nil
	}
	if pod == nil {
		return nil, fmt.Errorf("%s is not known yet, and so neither is whether its annotation %s asks for IMEX channels: "+
			"the container waits for the API server", c.Pod, wellknown.IMEXChannels)
	}
	text, asks := pod.Annotations[wellknown.IMEXChannels]
	if !asks {
		return nil, nil
	}
	nodes, err := chosenChannels(text, offered)
	if err != nil {
		return nil, &RejectedError{c.Name, RejectedChannels, fmt.Sprintf("annotation %s is %q: %v; allowed on this node: %s",
			wellknown.IMEXChannels, wellknown.ClipTo(text, maxQuoted), err, allowedChannels(offered)), false}
	}
	return nodes, nil
}

// hasGPUs reports whether an allocation is one of GPUs, or of shares of them.
func (n *Node) hasGPUs(a kubelet.Allocation) bool {
	kind := n.kindOf(&a)
	return kind == cdi.GPU || kind == cdi.SGPU
}

func chosenChannels(text string, offered *inventory.Channels) ([]*specs.DeviceNode, error) {
	wanted, err := gpu.ParseChannels(text)
	if err != nil {
		return nil, err
	}
	var allowed []int
	if offered.Allowed != gpu.AllChannels {
		if allowed, err = gpu.ParseChannels(offered.Allowed); err != nil {
			return nil, err
		}
	}
	nodes := make([]*specs.DeviceNode, len(wanted))
	for i, number := range wanted {
		node, has := offered.Nodes[number]
		switch {
		case offered.Allowed != gpu.AllChannels && !slices.Contains(allowed, number):
			return nil, fmt.Errorf("channel %d is not allowed", number)
		case !has:
			return nil, fmt.Errorf("the node has no channel %d", number)
		}
		nodes[i] = node
	}
	return nodes, nil
}

// allowedChannels describes the channels that a pod may request.
func allowedChannels(offered *inventory.Channels) string {
	if offered.Allowed != gpu.AllChannels {
		return offered.Allowed
	}
	if len(offered.Nodes) == 0 {
		return "all that it has, and it has none"
	}
	return "all that it has, " + numbers(slices.Sorted(maps.Keys(offered.Nodes)))
}
