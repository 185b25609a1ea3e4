package hami

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/allocation"
)

// NodeGPU is a GPU as HAMi's backend Metax-SGPU reads it from the Node
// annotation metax-tech.com/node-gpu-devices, a JSON list. HAMi 2.6 to 2.10
// use the UUID, the totals, NUMA, health, and from 2.7 QoSPolicy, Model and
// LinkZone; the place in the list is the GPU's index.
type NodeGPU struct {
	UUID  string `json:"uuid"`
	BDF   string `json:"bdf"`
	Model string `json:"model"`
	// TotalDevCount is the largest number of shares, TotalCompute 100 percent, TotalVRam the memory
	// in MiB.
	TotalDevCount int32 `json:"totalDevCount"`
	TotalCompute  int32 `json:"totalCompute"`
	TotalVRam     int32 `json:"totalVRam"`
	NUMA          int   `json:"numa"`
	Healthy       bool  `json:"healthy"`
	// QoSPolicy is the policy of the GPU's consumers, empty without any and for an
	// exclusive one. HAMi waits for it to become what it has just decided.
	QoSPolicy string `json:"qosPolicy"`
	// LinkZone numbers the GPUs that links join, from 1; 0 means no zone.
	LinkZone int32 `json:"linkZone"`
}

// NodeGPUs is the Node annotation's list. HAMi takes a node without GPUs for
// a broken one.
type NodeGPUs []NodeGPU

// ParseNodeGPUs reads the annotation.
func ParseNodeGPUs(text string) (NodeGPUs, error) {
	var n NodeGPUs
	err := decode(text, &n)
	if err == nil && len(n) > allocation.MaxGPUs {
		err = fmt.Errorf("%d GPUs; at most %d", len(n), allocation.MaxGPUs)
	}
	for i := range n {
		if err == nil {
			err = allocation.CheckUUID(n[i].UUID)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's GPUs: %w", err)
	}
	return n, nil
}

// String returns the annotation's text. Of a node without GPUs the list must not be nil.
func (n NodeGPUs) String() string {
	text, _ := json.Marshal(n) // It has strings and numbers.
	return string(text)
}

// Share is a share in the pod annotation metax-tech.com/gpu-devices-allocated.
type Share struct {
	UUID string `json:"uuid"`
	// Compute is percent, VRam MiB. HAMi leaves a 0 out.
	Compute int32 `json:"compute,omitempty"`
	VRam    int32 `json:"vRam,omitempty"`
}

// PodShares is the pod annotation's list: the shares of every container. HAMi
// lists init containers first since 2.9, and not at all before: the length
// distinguishes the two.
type PodShares [][]Share

// ParsePodShares reads the annotation.
func ParsePodShares(text string) (PodShares, error) {
	var p PodShares
	err := decode(text, &p)
	if err == nil && len(p) > allocation.MaxContainers {
		err = fmt.Errorf("%d containers; at most %d", len(p), allocation.MaxContainers)
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's allocation: %w", err)
	}
	for i, list := range p {
		if len(list) == 0 {
			continue
		}
		if e := allocation.CheckShares(p.Of(i)); e != nil {
			err = errors.Join(err, fmt.Errorf("container %d: %w", i, e))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("HAMi's allocation: %w", err)
	}
	return p, nil
}

// Of returns the shares of container i of the list; nil without any.
func (p PodShares) Of(i int) []allocation.Share {
	if i < 0 || i >= len(p) {
		return nil
	}
	var shares []allocation.Share
	for _, s := range p[i] {
		shares = append(shares, allocation.Share{UUID: s.UUID, VCore: int(s.Compute), MemoryMiB: int64(s.VRam)})
	}
	return shares
}

// decode reads one JSON value, which may have fields that only a later HAMi knows.
func decode(text string, into any) error {
	switch {
	case len(text) > allocation.MaxText:
		return fmt.Errorf("longer than %d bytes", allocation.MaxText)
	case text == "":
		return errors.New("empty")
	}
	return allocation.Clipped(json.Unmarshal([]byte(text), into))
}
