package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Source is a source of cable ends or of a node's groups.
//
// +kubebuilder:validation:Enum=ib;lldp;static;cluster-manager;node-labels
type Source string

// The sources, the most direct first.
const (
	// SourceIB is the switch's own answer to a directed-route SMP.
	SourceIB Source = "ib"
	// SourceLLDP is a frame that the switch sent on that cable.
	SourceLLDP Source = "lldp"
	// SourceStatic is a file.
	SourceStatic Source = "static"
	// SourceClusterManager is the vendor's cluster manager.
	SourceClusterManager Source = "cluster-manager"
	// SourceNodeLabels are labels of the Node, which give groups alone.
	SourceNodeLabels Source = "node-labels"
)

// LinkState is a port's state.
//
// +kubebuilder:validation:Enum=Active;Armed;Init;Down;Unknown
type LinkState string

// The states of a link: ports/N/state of the kernel.
const (
	LinkActive LinkState = "Active"
	LinkArmed  LinkState = "Armed"
	LinkInit   LinkState = "Init"
	LinkDown   LinkState = "Down"
	// LinkUnknown means that the port's state cannot be read.
	LinkUnknown LinkState = "Unknown"
)

// Rail describes one port of one HCA and the other end of its cable. A RoCE LAG, one port on two
// cables, has two entries that differ in netdev and plane, as the two ports of a multi-plane NIC
// have.
type Rail struct {
	// Rail is the number of the rail, from 0: the rank of the HCA among the
	// node's HCAs of its role, by the GPU next to it and then by PCI address.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	Rail int32 `json:"rail"`
	// Plane distinguishes the cables of one rail, from 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=15
	Plane int32 `json:"plane,omitempty"`
	// HCA is the RDMA device's name: mlx5_0. For display.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	HCA string `json:"hca"`
	// ID is the HCA's identity on its node: the PCI address, else the node
	// GUID, else the name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	ID string `json:"id"`
	// GUID is the HCA's node GUID as sysfs writes it; empty if unknown. Two
	// nodes that report the same one are both reported.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	GUID string `json:"guid,omitempty"`
	// Role is the purpose of the HCA: fabric, storage, management.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Role string `json:"role"`
	// GPUs are the UUIDs of the GPUs next to the HCA.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^\PC*$`
	GPUs []string `json:"gpus,omitempty"`
	// Port is the HCA's port number, from 1.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	Port int32 `json:"port"`
	// Netdev is the slave under a LAG that this entry is about.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Netdev string `json:"netdev,omitempty"`
	// LinkState is the port's.
	LinkState LinkState `json:"linkState"`
	// Since is the time of the port's last change, by the worker's clock: the link came up or went
	// down, the cable moved, or another card replaced the HCA. Absent if nothing changed since the
	// worker's first pass.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// RateGbps is the link's, in 10^9 bits a second, rounded to a whole
	// number; 0 if unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RateGbps int32 `json:"rateGbps,omitempty"`
	// LinkLayer is InfiniBand or Ethernet.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^\PC*$`
	LinkLayer string `json:"linkLayer,omitempty"`
	// Switch is the switch at the end of the cable; absent if unknown. For a port that is down it
	// is the last known switch, if the worker remembers it: groups and their names then outlive the
	// switch.
	// +optional
	Switch *Switch `json:"switch,omitempty"`
	// SwitchPort is the switch's port as the source spells it: a number over
	// InfiniBand, behind a director's board (L07/U1/12), a name over LLDP.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	SwitchPort string `json:"switchPort,omitempty"`
	// Source reported the switch; absent without a switch.
	// +optional
	Source Source `json:"source,omitempty"`
	// Confidence is the confidence in Switch, in percent: 100 for the switch's own answer on this
	// cable, less if sources disagree or the answer is old.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Confidence int32 `json:"confidence,omitempty"`
	// Counters are the port's errors; absent while all are 0 or unknown.
	// +optional
	Counters *Counters `json:"counters,omitempty"`
}

// Counters are errors of a port since its driver was loaded, by the kernel's
// counters. They are written when one of them has changed, and of one node at most
// once an hour: they show which cable is bad, not how it does now.
type Counters struct {
	// SymbolErrors is ports/N/counters/symbol_error.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SymbolErrors int64 `json:"symbolErrors,omitempty"`
	// LinkDowns is counters/link_downed; of Ethernet carrier_down_count of the
	// network device.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LinkDowns int64 `json:"linkDowns,omitempty"`
	// LinkErrorRecoveries is counters/link_error_recovery.
	// +optional
	// +kubebuilder:validation:Minimum=0
	LinkErrorRecoveries int64 `json:"linkErrorRecoveries,omitempty"`
	// ReceiveErrors is counters/port_rcv_errors.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReceiveErrors int64 `json:"receiveErrors,omitempty"`
	// ICRCErrors is hw_counters/rx_icrc_encapsulated: RoCE packets that arrived
	// damaged.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ICRCErrors int64 `json:"icrcErrors,omitempty"`
	// CRCErrors is statistics/rx_crc_errors of the network device, of Ethernet alone: frames that
	// arrived damaged.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CRCErrors int64 `json:"crcErrors,omitempty"`
	// FECErrors is the number of errors that forward error correction could not correct, by the
	// driver's statistics of the network device (ethtool -S), of Ethernet alone: symbols
	// (rx_pcs_symbol_err_phy of mlx5) or blocks (rx_fec_uncorrectable_blocks of bnxt_en).
	// +optional
	// +kubebuilder:validation:Minimum=0
	FECErrors int64 `json:"fecErrors,omitempty"`
	// BitErrorRate is the ratio of symbol errors to bits on the link between the previous reading
	// and this one, such as 2.5e-13; absent without errors, and in a first reading. The bits are
	// the link's rate times the time: an idle link carries bits too. With FEC, as with HDR and
	// later, only uncorrected symbol errors count.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9](\.[0-9])?e[+-][0-9]+$`
	BitErrorRate string `json:"bitErrorRate,omitempty"`
	// Time is the time of the reading, by the worker's clock.
	Time metav1.Time `json:"time"`
}

// SwitchEnd is the end of a DegradedLink with the counters of the switch's port.
const SwitchEnd = "switch"

// DeviceLink names the link of a GPU or an NVSwitch, or the GPU without a link.
func DeviceLink(id, link string) string {
	if name, ok := strings.CutPrefix(link, "NVSwitch "); ok {
		return "NVSwitch " + id + " " + name
	}
	return strings.TrimSpace("GPU " + id + " " + link)
}

// DegradedLink is one end of a link that has been worse than its limit in several readings.
type DegradedLink struct {
	// HCA is the RDMA device's name: mlx5_0. Empty for the link of a GPU or an NVSwitch.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	HCA string `json:"hca,omitempty"`
	// ID is the HCA's identity, as in [Rail], the UUID of a GPU, or the PCI address of an NVSwitch.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	ID string `json:"id"`
	// Port is the HCA's port number; absent for a PCIe link.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Port int32 `json:"port,omitempty"`
	// Netdev is the slave under a LAG that this entry is about.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Netdev string `json:"netdev,omitempty"`
	// Link is the link of the GPU to other GPUs, by the driver's number: NVLink 3; XGMI for all of a GPU together.
	// Of an NVSwitch it is NVSwitch link 46.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Link string `json:"link,omitempty"`
	// End is switch if the counters are of the switch's port; absent for the node's end.
	// +optional
	// +kubebuilder:validation:Enum=switch
	End string `json:"end,omitempty"`
	// What is the measure: symbol-errors, receive-errors, icrc-errors, crc-errors, fec-errors,
	// link-downs, link-error-recoveries, pcie-width, pcie-speed, nvlink-crc-errors, nvlink-replays,
	// nvlink-recoveries, xgmi-errors, sxid-fatal or sxid-non-fatal.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z-]+$`
	What string `json:"what"`
	// Value is the measure in the reading at Time, Limit the limit, both with their unit: 3.1e-11
	// per bit; x8. Value is written at most once an hour.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Value string `json:"value"`
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Limit string `json:"limit"`
	// Source is the origin of the limit: IBTA.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Source string `json:"source"`
	// Since is the beginning of the first reading above the limit, by the worker's clock.
	Since metav1.Time `json:"since"`
	// Time is the time of the reading, by the worker's clock.
	Time metav1.Time `json:"time"`
}

// Switch is the far end of a cable.
type Switch struct {
	// ID is the switch's identity: its system image GUID in 16 lower-case hex
	// digits over InfiniBand, which the boards of a director have in common, its
	// chassis ID over LLDP.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	ID string `json:"id"`
	// Name is the switch's own name. For display only: names repeat.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Name string `json:"name,omitempty"`
}

// Uplink is a cable from a leaf to another switch.
type Uplink struct {
	// Leaf is the ID of the leaf switch.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Leaf string `json:"leaf"`
	// Port is the leaf's port number.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	Port int32 `json:"port"`
	// Peer is the ID of the switch at the other end.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Peer string `json:"peer"`
	// PeerName is the peer switch's own name.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^\PC*$`
	PeerName string `json:"peerName,omitempty"`
	// PeerPort is its port number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	PeerPort int32 `json:"peerPort,omitempty"`
}
