package model

import (
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Facts are the variables of an expression.
type Facts struct {
	// Node is the Node's name.
	Node string `json:"node"`
	// GPU is the most frequent model of the node.
	GPU GPU `json:"gpu"`
	// CPU is the processor.
	CPU CPU `json:"cpu"`
	// RDMA are the HCAs of role fabric.
	RDMA RDMA `json:"rdma"`
	// Machine is everything, in the spelling of `heddle inspect -o json`.
	Machine *machine.Machine `json:"machine"`
}

// GPU is the model that a node has most of; ties go to the first by name.
type GPU struct {
	// Count is the number of GPUs of this model; 0 on a node without GPUs.
	Count int `json:"count"`
	// Product is the driver's name: "NVIDIA H800".
	Product string `json:"product"`
	// Model is the short name: "H800", "RTX-4090".
	Model string `json:"model"`
	// Interconnect is "NVLINK", "XGMI" or "PCIE"; empty without GPUs.
	Interconnect string `json:"interconnect"`
	// Memory is the nominal size: "80GB".
	Memory string `json:"memory"`
	// Models are the short names of all models, the most numerous first.
	Models []string `json:"models"`
}

// CPU is the processor of a node.
type CPU struct {
	// Codename is "amd-epyc-milan".
	Codename string `json:"codename"`
}

// RDMA is the HCAs of role fabric on a node, up or down. A virtual function whose
// physical one is on the same machine does not count.
type RDMA struct {
	// Count is the number of HCAs.
	Count int `json:"count"`
	// LinkLayer is "InfiniBand" or "Ethernet", the more frequent one.
	LinkLayer string `json:"linkLayer"`
	// RateGbps is the most frequent rate of active ports, in Gbit/s.
	RateGbps int `json:"rateGbps"`
	// Type is the most frequent hca_type: "MT4129".
	Type string `json:"type"`
}

// FactsOf reads the facts from a machine.
func FactsOf(m *machine.Machine) *Facts {
	return &Facts{
		Node: m.Node, GPU: gpuOf(m), CPU: CPU{m.CPU.Codename}, RDMA: RDMAOf(m), Machine: m,
	}
}

func gpuOf(m *machine.Machine) GPU {
	groups := Groups(m.GPUs)
	if len(groups) == 0 {
		return GPU{}
	}
	first := groups[0]
	gpu := GPU{
		Count:        len(first.GPUs),
		Product:      first.Product,
		Model:        Name(first.Product),
		Interconnect: "PCIE",
		Memory:       Memory(first.Product, first.MemoryMiB()),
	}
	if first.NVLink() {
		gpu.Interconnect = strings.ToUpper(first.linkKind())
	}
	for _, g := range groups {
		gpu.Models = append(gpu.Models, Name(g.Product))
	}
	return gpu
}

func isUp(p machine.Port) bool { return p.State != machine.PortDown }

// RDMAOf sums up the fabric HCAs of a machine. Ties go to the larger value.
func RDMAOf(m *machine.Machine) RDMA {
	physical := map[string]bool{}
	for i := range m.HCAs {
		physical[m.HCAs[i].PCI] = true
	}
	var rdma RDMA
	types, layers, rates := map[string]int{}, map[string]int{}, map[int]int{}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if h.Role != machine.RoleFabric || h.PhysFn != "" && physical[h.PhysFn] {
			continue
		}
		rdma.Count++
		if h.Elsewhere {
			continue // Its type and its ports are not known.
		}
		count(types, h.Type)
		up := slices.ContainsFunc(h.Ports, isUp)
		for j := range h.Ports {
			// Of a ConnectX-3 (VPI) one port can be InfiniBand and the other Ethernet.
			if isUp(h.Ports[j]) || !up {
				count(layers, h.Ports[j].LinkLayer)
			}
			if rate := h.Ports[j].RateGbps; rate != nil && h.Ports[j].State == machine.PortActive {
				count(rates, int(min(max(*rate, 0), 1e6)))
			}
		}
	}
	rdma.Type, rdma.LinkLayer, rdma.RateGbps = Mode(types), Mode(layers), Mode(rates)
	return rdma
}
