package allocation

import (
	"errors"
	"fmt"
)

// HAMiGPU is a GPU as HAMi's backend Metax-SGPU reads it from the Node
// annotation metax-tech.com/node-gpu-devices, a JSON list. HAMi 2.6 to 2.10
// use the UUID, the totals, NUMA, health, and from 2.7 QoSPolicy, Model and
// LinkZone; the place in the list is the GPU's index. The available amounts
// are for people.
type HAMiGPU struct {
	UUID  string `json:"uuid"`
	BDF   string `json:"bdf"`
	Model string `json:"model"`
	// TotalDevCount is how many shares there can be, TotalCompute 100 percent,
	// TotalVRam MiB.
	TotalDevCount     int32 `json:"totalDevCount"`
	TotalCompute      int32 `json:"totalCompute"`
	TotalVRam         int32 `json:"totalVRam"`
	AvailableDevCount int32 `json:"availableDevCount"`
	AvailableCompute  int32 `json:"availableCompute"`
	AvailableVRam     int32 `json:"availableVRam"`
	NUMA              int   `json:"numa"`
	Healthy           bool  `json:"healthy"`
	// QoSPolicy is that of the GPU's consumers, empty without any and for an
	// exclusive one. HAMi waits for it to become what it has just decided.
	QoSPolicy string `json:"qosPolicy"`
	// LinkZone numbers the GPUs that links join, from 1; 0 is none.
	LinkZone int32 `json:"linkZone"`
}

// HAMiNode is the Node annotation's list. HAMi takes a node without GPUs for
// a broken one.
type HAMiNode []HAMiGPU

// ParseHAMiNode reads the annotation.
func ParseHAMiNode(text string) (HAMiNode, error) {
	var n HAMiNode
	err := decode(text, &n, false)
	if err == nil && len(n) > maxGPUs {
		err = fmt.Errorf("%d GPUs; at most %d", len(n), maxGPUs)
	}
	for i := range n {
		if err == nil {
			err = checkUUID(n[i].UUID)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's GPUs: %w", err)
	}
	return n, nil
}

// String is the annotation's text.
func (n HAMiNode) String() string {
	if n == nil {
		return "[]"
	}
	return encode(n)
}

// HAMiShare is one share of the pod annotation
// metax-tech.com/gpu-devices-allocated.
type HAMiShare struct {
	UUID string `json:"uuid"`
	// Compute is percent, VRam MiB. HAMi leaves a 0 out.
	Compute int32 `json:"compute,omitempty"`
	VRam    int32 `json:"vRam,omitempty"`
}

// HAMiPod is the pod annotation's list: the shares of every container. HAMi
// lists init containers first since 2.9, and not at all before: the length
// distinguishes the two.
type HAMiPod [][]HAMiShare

// ParseHAMiPod reads the annotation.
func ParseHAMiPod(text string) (HAMiPod, error) {
	var p HAMiPod
	err := decode(text, &p, false)
	if err == nil && len(p) > maxContainers {
		err = fmt.Errorf("%d containers; at most %d", len(p), maxContainers)
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's allocation: %w", err)
	}
	for i, list := range p {
		if len(list) == 0 {
			continue
		}
		if e := checkShares(p.Shares(i)); e != nil {
			err = errors.Join(err, fmt.Errorf("container %d: %w", i, e))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's allocation: %w", err)
	}
	return p, nil
}

// Shares are the shares of container i of the list; nil without any.
func (p HAMiPod) Shares(i int) []Share {
	if i < 0 || i >= len(p) {
		return nil
	}
	var shares []Share
	for _, s := range p[i] {
		shares = append(shares, Share{UUID: s.UUID, VCore: int(s.Compute), MemoryMiB: int64(s.VRam)})
	}
	return shares
}

// String is the annotation's text.
func (p HAMiPod) String() string {
	if p == nil {
		return "[]"
	}
	return encode(p)
}
