// Package fabrictest decides which ports of a fabric test measure each other, and names the slow one from the results.
//
// It reads the outputs of perftest and of nccl-tests, plans rounds in which no HCA is used twice, and finds the HCA,
// cable, leaf or uplinks that explain slow flows; for collectives it bisects the nodes. It runs nothing and reads no
// clock.
package fabrictest

import (
	"cmp"
	"fmt"
)

// Port is a port of an HCA, the end of a cable.
type Port struct {
	Node string
	// HCA and ID are the RDMA device's name and identity.
	HCA, ID string
	Number  int32
	Netdev  string
	Rail    int32
	Plane   int32
	// Leaf is the switch at the other end; empty if unknown.
	Leaf string
	// Gbps is the bandwidth that the link and the HCA's PCIe link allow, in 10^9 bits a second; 0 if unknown.
	Gbps float64
}

// String returns the port as node, HCA and number: gpu-01 mlx5_0 port 1.
func (p *Port) String() string {
	return fmt.Sprintf("%s %s port %d", p.Node, cmp.Or(p.HCA, p.ID), p.Number)
}

// Flow is a run of perftest from one port to another, or to itself. Both are indexes of the test's ports.
type Flow struct{ From, To int }

// Result is the outcome of a flow.
type Result struct {
	Flow
	// Gbps is the bandwidth, in 10^9 bits a second, and Latency the typical latency of a read, in microseconds. Both are
	// 0 if the flow failed.
	Gbps, Latency float64
	// Failure explains a missing result. Gone is a node that gave way to a job, which says nothing about its fabric.
	Failure, Gone string
}

// Kind is the kind of a place.
type Kind string

// The kinds, which sort from the smallest place to the largest. Uplinks are all links of a leaf to the switches above
// it: which of them a flow takes is unknown.
const (
	Cable   Kind = "cable"
	HCA     Kind = "hca"
	Leaf    Kind = "leaf"
	Uplinks Kind = "uplinks"
)

// Place is a part of the fabric that flows go through.
type Place struct {
	Kind Kind
	// Port is the index of the port that has the HCA or the cable, -1 for another kind.
	Port int
	// Leaf is the switch; empty for an HCA or a cable.
	Leaf string
}

func (p *Place) name(ports []Port) string {
	if p.Port < 0 {
		return p.Leaf
	}
	return ports[p.Port].String()
}

// Fault is a part of the fabric that makes flows slow.
type Fault struct {
	Kind Kind `json:"kind"`
	// Where names the part, or several if the results do not tell them apart.
	Where []string `json:"where"`
	// What is bandwidth or latency, or failure for flows without a result.
	What string `json:"what"`
	// Value is the worst value, Limit the least good one, or of a latency the highest, both with their unit.
	Value string `json:"value"`
	Limit string `json:"limit"`
	// Flows is the number of slow flows that it explains.
	Flows int `json:"flows"`

	places []Place
}

// What is measured.
const (
	Bandwidth = "bandwidth"
	Latency   = "latency"
	Failure   = "failure"
)
