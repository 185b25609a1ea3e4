package wellknown

// Conditions of a Node.
const (
	// ConditionDevices of heddle-device-plugin: True while every device of every resource
	// is healthy; False while pods cannot get a device or a resource.
	ConditionDevices = "HeddleReady"
	// ConditionModes of heddle-device-plugin: True while a GPU is allocated in another
	// mode than the configuration wants; what it waits for.
	ConditionModes = "HeddleModePending"
	// ConditionRemediation of heddle-device-plugin: True while the Node is cordoned or drained,
	// by `health.remediation`, because a GPU stays unhealthy; the GPUs and the pods that
	// still have them.
	ConditionRemediation = "HeddleRemediation"
	// ConditionRejects of heddle-device-plugin: True while the node rejects pod after pod; why, and whether it
	// is withdrawn, waits for a pod as a probe, or stays in service.
	ConditionRejects = "HeddleRejectsPods"
	// ConditionFabric of heddle-topo-master: True while every known cable is where it
	// belongs and no link is degraded; Unknown while no switch behind the node's ports is known.
	ConditionFabric = "HeddleFabric"
)

// What follows are the reasons of Events, with when each is recorded. The documentation
// is made from the comments. Those about cables are reasons of [ConditionFabric] too.

// Warnings of heddle-feature-discovery about the Node.
const (
	// EventInvalidConfiguration: a new configuration is invalid and the last good one stays;
	// the key and the line.
	EventInvalidConfiguration = "InvalidConfiguration"
	// EventLabelConflict: another writer holds a label or a taint with another value; its
	// field manager.
	EventLabelConflict = "LabelConflict"
	// EventGPUDriverAbsent: the driver is absent; until when labels and taints stay, and
	// that they are gone.
	EventGPUDriverAbsent = "GPUDriverAbsent"
)

// Warnings of heddle-device-plugin about the Node.
const (
	// EventKubeletAbsent: the kubelet's socket for device plugins has been absent for a minute, so that the
	// node offers no devices; its path.
	EventKubeletAbsent = "KubeletSocketAbsent"
	// EventDeviceUnhealthy: a GPU, or an HCA of a resource, becomes unhealthy; the reason.
	EventDeviceUnhealthy = "DeviceUnhealthy"
	// EventRemediationStarted: the Node is cordoned because a GPU stays unhealthy; which.
	EventRemediationStarted = "GPURemediationStarted"
	// EventWithdrawn: the node rejects pod after pod, and all its devices are withdrawn; why.
	EventWithdrawn = "NodeWithdrawn"
	// EventNotWithdrawn: the node rejects pod after pod, and stays in service; why.
	EventNotWithdrawn = "NodeNotWithdrawn"
	// EventNothingToOffer: a resource has lost its last device.
	EventNothingToOffer = "NothingToOffer"
	// EventGPUReleaseInvalid: the annotation of a release does not parse.
	EventGPUReleaseInvalid = "GPUReleaseInvalid"
	// EventSGPUDrift: what a container has differs from the checkpoint.
	EventSGPUDrift = "SGPUDrift"
)

// Notices of heddle-device-plugin about the Node.
const (
	// EventDeviceRecovered: the device is healthy again.
	EventDeviceRecovered = "DeviceRecovered"
	// EventRemediationEnded: all GPUs are healthy again, and the Node is no longer cordoned.
	EventRemediationEnded = "GPURemediationEnded"
	// EventReturned: a pod has started, and a node that rejected pod after pod is in service again.
	EventReturned = "NodeReturned"
	// EventGPUsReleased: an operator released the driver; until when.
	EventGPUsReleased = "GPUsReleased"
	// EventGPUReleaseEnded: the release was canceled or has expired.
	EventGPUReleaseEnded = "GPUReleaseEnded"
)

// Warnings of heddle-device-plugin about the Node and its pods.
const (
	// EventMPSFailed: the MPS daemon of a GPU does not start, or has died under containers.
	EventMPSFailed = "MPSFailed"
)

// Warnings of heddle-device-plugin about pods.
const (
	// EventSGPURejected: a container gets no share of a GPU and waits; the reason.
	EventSGPURejected = "SGPURejected"
	// EventSGPUEvicted: a pod without its share waited for longer than `sgpu.rejectedFor`.
	EventSGPUEvicted = "SGPUEvicted"
	// EventGPUDirty: a container waits for a GPU because a process or memory of another pod is still on it; the
	// process, its pod, its memory and since when.
	EventGPUDirty = "GPUDirty"
	// EventUnhealthyGPUEvicted: the pod has a GPU that stays unhealthy, and
	// `health.remediation` is drain.
	EventUnhealthyGPUEvicted = "UnhealthyGPUEvicted"
	// EventHCARejected: a container gets fewer HCAs than it requests of a resource with
	// count strict, and waits.
	EventHCARejected = "HCARejected"
	// EventHCAEvicted: a pod without its HCAs waited for longer than a minute.
	EventHCAEvicted = "HCAEvicted"
	// EventIMEXRejected: the pod requests an IMEX channel that it cannot have on the node, and
	// waits. The Event names the annotation, its value and the allowed channels.
	EventIMEXRejected = "IMEXRejected"
	// EventFewerHCAs: a container has fewer HCAs than it requests.
	EventFewerHCAs = "FewerHCAs"
	// EventHCANotLocal: a GPU of the container is far from its HCAs, and the machine has a
	// nearer one.
	EventHCANotLocal = "HCANotLocal"
	// EventHCANotInPodNetwork: the pod's network namespace lacks an HCA of its container.
	EventHCANotInPodNetwork = "HCANotInPodNetwork"
	// EventSharesOnOtherNUMANode: a share is on another NUMA node than the container's exclusive CPUs.
	EventSharesOnOtherNUMANode = "SharesOnOtherNUMANode"
	// EventSharesNotEnforced: nothing limits the pod's shares.
	EventSharesNotEnforced = "SharesNotEnforced"
	// EventShareExceeded: a container exceeds its share of memory or compute, or blocks a higher
	// priority on a full GPU; enforcer `evict`.
	EventShareExceeded = "ShareExceeded"
	// EventShareEvicted: enforcer `evict` evicted the pod; the reason.
	EventShareEvicted = "ShareEvicted"
	// EventSelectorNotHonored: the pod has GPUs that its annotations refuse, or requests one that
	// the node lacks.
	EventSelectorNotHonored = "SelectorNotHonored"
	// EventDevicesLost: the kubelet's checkpoint has lost the devices of a container, which
	// continues to run and cannot start again.
	EventDevicesLost = "DevicesLost"
)

// Warnings of heddle-topo-master about the Node.
const (
	// EventCableMisplaced: a port is on another switch than its group's for that rail.
	EventCableMisplaced = "CableMisplaced"
	// EventLinkDown: the link of a port is not active.
	EventLinkDown = "LinkDown"
	// EventPortMissing: the node lacks a rail that others of its group have.
	EventPortMissing = "PortMissing"
	// EventDuplicateGUID: another node reports an HCA with the same GUID.
	EventDuplicateGUID = "DuplicateGUID"
	// EventPathContradicts: a path contradicts what most others of its group report.
	EventPathContradicts = "PathContradicts"
	// EventLinkDegraded: a link has been worse than its limit in several readings; the limit and its source.
	EventLinkDegraded = "LinkDegraded"
	// EventFabricFinding: a finding without another reason.
	EventFabricFinding = "FabricFinding"
)

// Notices of heddle-topo-master about the Node.
const (
	// EventCableRecovered: a finding has ended.
	EventCableRecovered = "CableRecovered"
)

// Warnings of heddle-scheduler about pods.
const (
	// EventGangIncomplete: a gang has lacked pods for half a minute; how many.
	EventGangIncomplete = "GangIncomplete"
	// EventGangInvalidAnnotation: an annotation about the gang is ignored; which, and why.
	EventGangInvalidAnnotation = "GangInvalidAnnotation"
)

// Notices of heddle-scheduler about pods.
const (
	// EventPreempted: heddle-scheduler evicted a pod with its whole gang for a higher priority.
	EventPreempted = "Preempted"
)
