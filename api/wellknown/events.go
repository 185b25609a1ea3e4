package wellknown

// Conditions of a Node. [Conditions] has what they mean.
const (
	ConditionDevices = "HeddleReady"
	ConditionModes   = "HeddleModePending"
	// ConditionFabric is the one of a NodeTopology too.
	ConditionFabric = "HeddleFabric"
)

// Condition is a condition as the documentation shows it: what its two states mean.
type Condition struct{ Type, Component, True, False string }

// Conditions are all conditions of a Node.
func Conditions() []Condition {
	return []Condition{
		{ConditionDevices, "heddle-device-plugin", "every device of every resource is healthy", "a device, or a resource, is in no pod's reach; the reason is one of those below"},
		{ConditionModes, "heddle-device-plugin", "a GPU is handed out in another mode than the configuration wants; what it waits for", "every GPU is handed out as configured"},
		{ConditionFabric, "heddle-topo-master", "every known cable ends where it is expected", "a cable does not; `Unknown`: no switch behind the node's ports is known"},
	}
}

// Reasons of Events. [Events] lists them for the documentation, with when each is
// recorded. Those about cables are reasons of [ConditionFabric] too.
const (
	EventInvalidConfiguration  = "InvalidConfiguration"
	EventLabelConflict         = "LabelConflict"
	EventGPUDriverAbsent       = "GPUDriverAbsent"
	EventDeviceUnhealthy       = "DeviceUnhealthy"
	EventDeviceRecovered       = "DeviceRecovered"
	EventNothingToOffer        = "NothingToOffer"
	EventGPUsReleased          = "GPUsReleased"
	EventGPUReleaseEnded       = "GPUReleaseEnded"
	EventGPUReleaseInvalid     = "GPUReleaseInvalid"
	EventMPSFailed             = "MPSFailed"
	EventMPSRecovered          = "MPSRecovered"
	EventSGPUDrift             = "SGPUDrift"
	EventSGPURejected          = "SGPURefused"
	EventSGPUEvicted           = "SGPUEvicted"
	EventHCARejected           = "HCARefused"
	EventHCAEvicted            = "HCAEvicted"
	EventFewerHCAs             = "FewerHCAs"
	EventHCANotLocal           = "HCANotLocal"
	EventHCANotInPodNetwork    = "HCANotInPodNetwork"
	EventSharesOnOtherNUMANode = "SharesOnOtherNUMANode"
	EventSharesNotEnforced     = "SharesNotEnforced"
	EventSelectorNotHonored    = "SelectorNotHonored"
	EventDevicesLost           = "DevicesLost"
	EventCableMisplaced        = "CableMisplaced"
	EventLinkDown              = "LinkDown"
	EventPortMissing           = "PortMissing"
	EventDuplicateGUID         = "DuplicateGUID"
	EventPathContradicts       = "PathContradicts"
	EventFabricFinding         = "FabricFinding"
	EventCableRecovered        = "CableRecovered"
	EventGangIncomplete        = "GangIncomplete"
	EventGangInvalidAnnotation = "GangInvalidAnnotation"
	EventPreempted             = "Preempted"
)

// Event is a reason of Events as the documentation shows it.
type Event struct {
	// Type is Normal or Warning; Object is the kind of what it is about.
	Type, Reason, Object string
	// Component is the program that records it; When is a clause.
	Component, When string
}

// Events are all reasons, by program.
func Events() []Event {
	const (
		warning, normal, node, pod = "Warning", "Normal", "Node", "Pod"
		discovery, plugin          = "heddle-feature-discovery", "heddle-device-plugin"
		master, scheduler          = "heddle-topo-master", "heddle-scheduler"
	)
	return []Event{
		{warning, EventInvalidConfiguration, node, discovery, "a new configuration is wrong and the last good one stays; the key and the line"},
		{warning, EventLabelConflict, node, discovery, "another writer holds a label or a taint with another value; its field manager"},
		{warning, EventGPUDriverAbsent, node, discovery, "the driver is absent: until when labels and taints stay, and that they went"},
		{warning, EventDeviceUnhealthy, node, plugin, "a GPU, or an HCA of a resource, becomes unhealthy; the reason"},
		{normal, EventDeviceRecovered, node, plugin, "it is healthy again"},
		{warning, EventNothingToOffer, node, plugin, "a resource has no device any more"},
		{normal, EventGPUsReleased, node, plugin, "an operator released the driver; until when"},
		{normal, EventGPUReleaseEnded, node, plugin, "the release was taken back, or its time is over"},
		{warning, EventGPUReleaseInvalid, node, plugin, "the annotation of a release does not parse"},
		{warning, EventMPSFailed, "Node, Pod", plugin, "the MPS daemon of a GPU does not start, or died under the pod's containers"},
		{normal, EventMPSRecovered, node, plugin, "it has run for a minute again"},
		{warning, EventSGPUDrift, node, plugin, "what a container has differs from the checkpoint, or an annotation from what it has"},
		{warning, EventSGPURejected, pod, plugin, "a container gets no share of a GPU and waits; the reason"},
		{warning, EventSGPUEvicted, pod, plugin, "it waited for longer than `sgpu.refusedFor`"},
		{warning, EventHCARejected, pod, plugin, "a container gets fewer HCAs than it requests of a resource with `count: strict`, and waits"},
		{warning, EventHCAEvicted, pod, plugin, "it waited for longer than `rdma.refusedFor`"},
		{warning, EventFewerHCAs, pod, plugin, "a container has fewer HCAs than it requests"},
		{warning, EventHCANotLocal, pod, plugin, "a GPU of the container is far from its HCAs, and the machine has a nearer one"},
		{warning, EventHCANotInPodNetwork, pod, plugin, "the pod's network namespace lacks an HCA of its container"},
		{warning, EventSharesOnOtherNUMANode, pod, plugin, "a share is of another NUMA node than the processors that the container has alone"},
		{warning, EventSharesNotEnforced, pod, plugin, "nothing limits the pod's shares"},
		{warning, EventSelectorNotHonored, pod, plugin, "the pod has GPUs that its annotations do not accept, or asks for one that the node has not"},
		{warning, EventDevicesLost, pod, plugin, "the kubelet's checkpoint has lost the devices of a container, which runs on and cannot start again"},
		{warning, EventCableMisplaced, node, master, "a port is on another switch than its group's for that rail"},
		{warning, EventLinkDown, node, master, "a port has a link that is not active"},
		{warning, EventPortMissing, node, master, "the node lacks a rail that others of its group have"},
		{warning, EventDuplicateGUID, node, master, "another node reports an HCA with the same GUID"},
		{warning, EventPathContradicts, node, master, "a path contradicts what most others of its group report"},
		{warning, EventFabricFinding, node, master, "a finding has no reason of its own"},
		{normal, EventCableRecovered, node, master, "a port is as expected again"},
		{warning, EventGangIncomplete, pod, scheduler, "a gang has lacked pods for half a minute; how many"},
		{warning, EventGangInvalidAnnotation, pod, scheduler, "an annotation about the gang is ignored; which, and why"},
		{normal, EventPreempted, pod, scheduler, "a pod was evicted for a gang of a higher priority"},
	}
}
