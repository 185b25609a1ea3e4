package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeTopology is one node's report of where its cables end. It is named as
// its Node and owned by it; the node's topo-worker writes spec and heartbeat.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=nodetopologies,singular=nodetopology,shortName=nt
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Accelerator",type=string,JSONPath=`.spec.accelerators[0].product`
// +kubebuilder:printcolumn:name="Count",type=integer,JSONPath=`.spec.accelerators[0].count`
// +kubebuilder:printcolumn:name="Leaf",type=string,JSONPath=`.status.leaf`
// +kubebuilder:printcolumn:name="Rails",type=string,JSONPath=`.status.rails`
// +kubebuilder:printcolumn:name="Findings",type=integer,JSONPath=`.status.findingCount`
// +kubebuilder:printcolumn:name="NVLink Domain",type=string,JSONPath=`.spec.nvlinkDomain`,priority=1
// +kubebuilder:printcolumn:name="Switches",type=string,JSONPath=`.spec.rails[*].switch.name`,priority=1
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.findings[0].message`,priority=1
// +kubebuilder:printcolumn:name="Heartbeat",type=date,JSONPath=`.status.heartbeatTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec NodeTopologySpec `json:"spec,omitempty"`
	// +optional
	Status NodeTopologyStatus `json:"status,omitempty"`
}

// NodeTopologyList is a list of NodeTopology.
//
// +kubebuilder:object:root=true
type NodeTopologyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeTopology `json:"items"`
}

// NodeTopologySpec holds the result of one pass of the node's topo-worker. It is written by
// server-side apply, only when it changed; its lists are replaced as a whole.
type NodeTopologySpec struct {
	// Accelerators are the node's, one entry per product, sorted by product.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Accelerators []Accelerator `json:"accelerators,omitempty"`
	// NVLinkDomain is "<clusterUUID>.<cliqueId>" if the NVLink fabric spans nodes; empty if the
	// node is a separate domain or its GPUs do not agree.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	NVLinkDomain string `json:"nvlinkDomain,omitempty"`
	// Rails are the node's HCA ports and the switch port behind each, sorted
	// by rail, plane, id and port. Ports of every role are listed: the role
	// decides which of them make groups.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Rails []Rail `json:"rails,omitempty"`
	// Path are the groups that a static file or a cluster manager puts the
	// node into, top first: switchbox-1, dragonfly-2. An element is the
	// group's name or the part of it behind its kind and hyphen.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^\PC*$`
	// +kubebuilder:validation:items:MinLength=1
	Path []string `json:"path,omitempty"`
	// PathSource is the source of Path.
	// +optional
	PathSource Source `json:"pathSource,omitempty"`
	// Uplinks lists the uplinks of the leaves in status.walk.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2048
	Uplinks []Uplink `json:"uplinks,omitempty"`
	// Skipped lists what the pass could not read, and why: a source that failed or a device that
	// did not answer.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Skipped []Skipped `json:"skipped,omitempty"`
	// Stale lists the silent sources with an old answer in rails or path: cables do not move
	// because a server is silent.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Stale []StaleSource `json:"stale,omitempty"`
	// DegradedLinks lists the links that work worse than their limits, sorted by id, port, netdev
	// and what.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	DegradedLinks []DegradedLink `json:"degradedLinks,omitempty"`
}

// StaleSource is a source with an old answer in use.
type StaleSource struct {
	Source Source `json:"source"`
	// Since is the time of the source's last good answer, by the worker's clock, or if unknown, the
	// time when the worker first missed it.
	Since metav1.Time `json:"since"`
	// Reason explains the absence of a newer answer.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Reason string `json:"reason,omitempty"`
}

// Accelerator counts the accelerators of one product on a node.
type Accelerator struct {
	// Product is as in the label gpu.product: NVIDIA-H20.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Product string `json:"product"`
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1024
	Count int32 `json:"count"`
}

// Skipped names something that a pass could not read.
type Skipped struct {
	// Name is the source or the device: lldp, mlx5_3.
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Reason string `json:"reason"`
}

// HeartbeatInterval is the longest time between two heartbeats of a worker. The kubelet reports the
// liveness of the node.
const HeartbeatInterval = time.Hour

// NodeTopologyStatus is written by three: the worker its heartbeat, `heddle fabric test`
// its results, topo-master the rest.
type NodeTopologyStatus struct {
	// HeartbeatTime is the end of the worker's last pass, by its own clock; it is written every
	// HeartbeatInterval or a little sooner by a blind merge patch.
	// +optional
	HeartbeatTime *metav1.Time `json:"heartbeatTime,omitempty"`
	// Walk lists the IDs of the leaf switches with uplinks for this node's worker to discover.
	// topo-master writes it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^\PC*$`
	Walk []string `json:"walk,omitempty"`
	// Leaf is the name of the group of leaf switches that the node is in, or of
	// the lowest group of any kind; empty if it is in none. topo-master writes
	// it, and all that follows.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Leaf string `json:"leaf,omitempty"`
	// Rails counts the fabric ports with a known switch, and all fabric ports: 8/8.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Rails string `json:"rails,omitempty"`
	// FindingCount is the number of all findings; Findings lists the first ones.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FindingCount *int32 `json:"findingCount,omitempty"`
	// Findings are the ports that are not as they should be.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Findings []Finding `json:"findings,omitempty"`
	// Conditions has HeddleFabric, as the Node has.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Tests has the results of heddle fabric test for each port that was tested, sorted by id, port
	// and netdev.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Tests []LinkTest `json:"tests,omitempty"`
}

// Finding describes one fault of a node's cables.
type Finding struct {
	// Kind is miscabled, dead, missing, duplicate, path or degraded-link.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Kind string `json:"kind"`
	// Port names the port: mlx5_3 port 1 (rail 3).
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Port string `json:"port,omitempty"`
	// Message is the finding in a sentence, with the switch that is expected.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Message string `json:"message"`
}
