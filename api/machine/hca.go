package machine

import "strings"

// HCA is one RDMA device of the kernel (/sys/class/infiniband/NAME).
type HCA struct {
	// Name is the RDMA device's: mlx5_0, ibp16p3s0, rxe0. Renamed by udev
	// rules at will, so it is for display and for NCCL_IB_HCA only.
	Name string `json:"name"`
	// PCI is the address of its function; empty for a virtual device.
	PCI string `json:"pci"`
	// NodeGUID is node_guid as sysfs writes it: 946d:ae03:0012:0000.
	NodeGUID string `json:"nodeGUID"`
	// SysImageGUID is sys_image_guid, which the functions of one adapter share.
	SysImageGUID string `json:"sysImageGUID"`
	// Vendor and Device are the PCI identifiers: 0x15b3, 0x1021.
	Vendor string `json:"vendor"`
	Device string `json:"device"`
	// Driver is the kernel driver of the function, or the soft driver's
	// name (rdma_rxe, siw) for a virtual device.
	Driver string `json:"driver"`
	// Type, Board and Firmware are hca_type, board_id and fw_ver.
	Type     string `json:"type"`
	Board    string `json:"board"`
	Firmware string `json:"firmware"`
	// NodeType is the words of node_type: CA, RNIC, usNIC.
	NodeType string `json:"nodeType"`
	// NodeDesc is node_desc; on real fabrics often useless.
	NodeDesc string `json:"nodeDesc"`
	// PhysFn is the physical function's address if this is a virtual one.
	PhysFn string `json:"physFn,omitempty"`
	// Virtual marks soft RDMA: no PCI function behind it.
	Virtual bool `json:"virtual"`
	// Elsewhere: it is in another network namespace, as a pod's in RDMA's netns mode
	// exclusive. Of such an HCA only name, place and device nodes are known.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// BondSlaves are the netdevs under a RoCE LAG (bonding/slaves of its
	// netdev); empty otherwise.
	BondSlaves []string `json:"bondSlaves,omitempty"`
	// DataDirect is the address of the DMA function that sits beside the
	// GPU (15b3:2100), joined with this one by the VPD's V3 field and not
	// by the PCI tree; empty on all but ConnectX-8 and later.
	DataDirect string `json:"dataDirect,omitempty"`
	// Role is the purpose of the device.
	Role Role `json:"role"`
	// Ports, by number.
	Ports []Port `json:"ports"`
	// CharDevices are its nodes under /dev/infiniband, names only.
	CharDevices CharDevices `json:"charDevices"`
}

// Role is the purpose of an HCA.
type Role string

// The roles of an HCA.
const (
	// RoleFabric carries the traffic between GPUs of different nodes.
	RoleFabric Role = "fabric"
	// RoleStorage carries storage or the cluster's ordinary network.
	RoleStorage Role = "storage"
	// RoleManagement is slow and for operators.
	RoleManagement Role = "management"
	// RoleNVSwitch is a management function of an NVSwitch that the kernel
	// shows as an HCA (HGX B200 and B300); never for workloads.
	RoleNVSwitch Role = "nvswitch"
	// RoleVirtual is soft RDMA.
	RoleVirtual Role = "virtual"
)

// Port states, the words of ports/N/state.
const (
	PortDown   = "DOWN"
	PortInit   = "INIT"
	PortArmed  = "ARMED"
	PortActive = "ACTIVE"
)

// Link layers, the words of ports/N/link_layer.
const (
	InfiniBand = "InfiniBand"
	Ethernet   = "Ethernet"
)

// DefaultSubnetPrefix is the prefix of fabrics without a configured one.
const DefaultSubnetPrefix = "fe80:0000:0000:0000"

// Port is /sys/class/infiniband/NAME/ports/N.
type Port struct {
	Number int `json:"number"`
	// GUID is the lower half of GID 0 (gids/0); it differs from the node's
	// GUID on BlueField-3 and on second ports. Empty if unreadable.
	GUID string `json:"guid"`
	// SubnetPrefix is the upper half of GID 0 on InfiniBand, which names the
	// fabric; empty for DefaultSubnetPrefix.
	SubnetPrefix string `json:"subnetPrefix,omitempty"`
	// LinkLayer is InfiniBand or Ethernet.
	LinkLayer string `json:"linkLayer"`
	// State and PhysState are the words of state and phys_state: ACTIVE,
	// LinkUp.
	State     string `json:"state"`
	PhysState string `json:"physState"`
	// RateGbps is the number of rate, in 10^9 bits a second; nil if it does
	// not parse. A port that is down shows its lowest speed.
	RateGbps *float64 `json:"rateGbps"`
	// Rate is rate as written: "400 Gb/sec (4X NDR)".
	Rate string `json:"rate"`
	// LID and SMLID are lid and sm_lid: 0 on Ethernet, and on InfiniBand until an SM came.
	LID   int `json:"lid"`
	SMLID int `json:"smLID"`
	// PKeyIndex is where pkeys has the default partition, in which the subnet
	// manager is: on InfiniBand 0, unless a cloud put its own partition there.
	PKeyIndex int `json:"pkeyIndex,omitempty"`
	// Netdevs are the network devices on this port.
	Netdevs []Netdev `json:"netdevs"`
}

// Netdev is a network device that belongs to an RDMA port. Its state
// does not follow the port's: an IPoIB device is often down over an active port.
type Netdev struct {
	Name string `json:"name"`
	// Type is the kernel's encapsulation as the field spells it: "ether",
	// "infiniband"; or the number of /sys/class/net/NAME/type.
	Type string `json:"type"`
	// OperState is /sys/class/net/NAME/operstate.
	OperState string `json:"operState"`
}

// CharDevices are the names of device nodes in /dev/infiniband.
type CharDevices struct {
	UVerbs []string `json:"uverbs"`
	UMAD   []string `json:"umad"`
	ISSM   []string `json:"issm"`
}

// HCAIDs returns the identities of the HCAs, in the order of m.HCAs: what outlives
// a reboot, a rename and the loss of a neighbor. An identity is the PCI
// address, or without one the node GUID, or without both the RDMA name. One
// function can carry several RDMA devices (a ConnectX-8 has mlx5_0 and smi1):
// those after the first have their name behind the address.
func (m *Machine) HCAIDs() []string {
	ids := make([]string, len(m.HCAs))
	seen := make(map[string]bool, len(m.HCAs))
	for i := range m.HCAs {
		h := &m.HCAs[i]
		id := h.PCI
		if id == "" && strings.Trim(h.NodeGUID, "0:") != "" {
			id = h.NodeGUID
		}
		switch {
		case id == "":
			id = h.Name
		case seen[id]:
			id += "/" + h.Name
		}
		seen[id] = true
		ids[i] = id
	}
	return ids
}
