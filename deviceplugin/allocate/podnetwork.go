package allocate

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// NetnsExclusive is the kernel's mode in which an HCA belongs to one network
// namespace.
const NetnsExclusive = "exclusive"

// The annotations by which a pod has networks beside the cluster's: the first two
// name them, the third is Multus' list of all that the pod got.
const (
	podNetworks    = "k8s.v1.cni.cncf.io/networks"
	defaultNetwork = "v1.multus-cni.io/default-network"
	networkStatus  = "k8s.v1.cni.cncf.io/network-status"
)

// networkWarnings are about HCAs of a result that the pod, nil if it is not known,
// cannot use in its network namespace. What a network of the pod brings is not known
// here, so a pod that has one is believed.
func (n *Node) networkWarnings(pod *corev1.Pod, r *Result) []Warning {
	if pod == nil || pod.Spec.HostNetwork || !r.Changed {
		return nil
	}
	m, c := n.Inventory.Machine, n.Inventory.Config
	exclusive, networked, shared := m.RDMA.NetnsMode == NetnsExclusive, hasNetworks(pod), false
	ids := m.HCAIDs()
	var lacking []string
	for i := range r.Devices.HCAs {
		d := &r.Devices.HCAs[i]
		at := slices.Index(ids, d.ID)
		if at < 0 {
			continue
		}
		resource := c.RDMA.Resource(d.Resource)
		moved := resource != nil && resource.Sharers == 1 && networked
		switch {
		case exclusive && !moved:
			shared = shared || resource != nil && resource.Sharers > 1
			lacking = append(lacking, d.Name)
		case !exclusive && !networked && hasNetdev(&m.HCAs[at]):
			lacking = append(lacking, d.Name)
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	message := strings.Join(lacking, ", ") + ": "
	switch {
	case shared:
		message += "the node's RDMA netns mode is exclusive, and an HCA that pods share stays in the node's network: " +
			"set hostNetwork: true, or sharers: 1 for the resource and a network with rdma-cni in the annotation " +
			podNetworks
	case exclusive:
		message += "the node's RDMA netns mode is exclusive, and no network of the pod moves the HCA into its network: " +
			"name one with rdma-cni in the annotation " + podNetworks + ", or set hostNetwork: true"
	default:
		message += "RoCE needs a network device of the HCA in the pod's network, and the pod has the cluster's network " +
			"only: name a network on it (macvlan, ipvlan, sriov, host-device) in the annotation " + podNetworks +
			", or set hostNetwork: true"
	}
	return []Warning{{wellknown.EventHCANotInPodNetwork, message}}
}

// hasNetworks reports whether a pod has a network beside the cluster's default one.
func hasNetworks(pod *corev1.Pod) bool {
	var got []struct{} // Who is in it does not matter.
	if json.Unmarshal([]byte(pod.Annotations[networkStatus]), &got) == nil && len(got) > 1 {
		return true
	}
	return pod.Annotations[podNetworks] != "" || pod.Annotations[defaultNetwork] != ""
}

// hasNetdev reports whether an HCA has a port of RoCE with a network device in the
// node's network. One without has moved, into the pod's as far as is known.
func hasNetdev(h *machine.HCA) bool {
	return slices.ContainsFunc(h.Ports, func(p machine.Port) bool {
		return p.LinkLayer == machine.Ethernet && len(p.Netdevs) > 0
	})
}
