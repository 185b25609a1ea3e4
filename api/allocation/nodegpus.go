package allocation

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// NodeGPUs holds the shared GPUs of a Node and their use: the annotation heddle.dev/sgpu-cards.
// Younger bindings are only in their pods' [Bound] annotations.
type NodeGPUs struct {
	Version int `json:"version"`
	// GPUs are sorted by Index.
	GPUs []GPU `json:"cards"`
}

// GPU describes one shared GPU.
type GPU struct {
	UUID string `json:"uuid"`
	// Index is the driver's number, for people: it changes when a GPU is lost.
	Index int `json:"index"`
	// MemoryMiB is the GPU's memory, the limit of one consumer.
	MemoryMiB int64 `json:"memoryMiB"`
	// RoomMiB is the limit of all consumers together, where that is more.
	RoomMiB int64 `json:"roomMiB,omitempty"`
	// Slots bounds the consumers of the GPU.
	Slots int `json:"slots"`
	// NUMA is the node that the GPU is on; nil is unknown.
	NUMA *int `json:"numa"`
	// Zone numbers the GPUs that NVLink joins, from 1; 0 is joined to none.
	Zone int `json:"zone"`
	// Healthy GPUs may get new consumers; Reason is why an unhealthy one may not.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Policy is the QoS policy of the consumers, empty without any.
	Policy string `json:"policy,omitempty"`
	// Exclusive reports that one consumer has the GPU exclusively.
	Exclusive bool `json:"exclusive,omitempty"`
	// Taken is the part that the consumers have.
	Taken Taken `json:"taken"`
}

// Taken is the allocated part of a GPU.
type Taken struct {
	VCore     int   `json:"vcore"`
	MemoryMiB int64 `json:"memoryMiB"`
	Slots     int   `json:"slots"`
}

// ParseNodeGPUs reads an annotation.
func ParseNodeGPUs(text string) (*NodeGPUs, error) {
	return parse("GPUs", text, (*NodeGPUs).check)
}

func (c *NodeGPUs) check() error {
	if err := checkVersion(c.Version); err != nil {
		return err
	}
	if len(c.GPUs) > MaxGPUs {
		return fmt.Errorf("%d GPUs; at most %d", len(c.GPUs), MaxGPUs)
	}
	var errs []error
	seen := make(map[string]bool, len(c.GPUs))
	for i := range c.GPUs {
		gpu := &c.GPUs[i]
		e := gpu.check()
		if seen[gpu.UUID] {
			e = errors.Join(e, errors.New("duplicate"))
		}
		seen[gpu.UUID] = true
		if e != nil {
			errs = append(errs, fmt.Errorf("GPU %q: %w", wellknown.Clip(gpu.UUID), e))
		}
	}
	return errors.Join(errs...)
}

// String returns the annotation's text.
func (c *NodeGPUs) String() string { return encode(c) }

func (c *GPU) check() error {
	err := errors.Join(
		CheckUUID(c.UUID),
		within("index", int64(c.Index), maxIndex),
		within("memoryMiB", c.MemoryMiB, MaxMemoryMiB),
		within("roomMiB", c.RoomMiB, 8*MaxMemoryMiB),
		within("slots", int64(c.Slots), maxSlots),
		within("zone", int64(c.Zone), maxIndex),
		within("taken.vcore", int64(c.Taken.VCore), maxSlots*100),
		within("taken.memoryMiB", c.Taken.MemoryMiB, MaxMemoryMiB),
		within("taken.slots", int64(c.Taken.Slots), maxSlots),
	)
	if c.NUMA != nil {
		err = errors.Join(err, within("numa", int64(*c.NUMA), maxIndex))
	}
	if c.RoomMiB != 0 && c.RoomMiB <= c.MemoryMiB {
		err = errors.Join(err, errors.New("roomMiB: not more than memoryMiB"))
	}
	if c.Policy != "" {
		err = errors.Join(err, checkPolicy(c.Policy))
	}
	if c.Healthy != (c.Reason == "") {
		err = errors.Join(err, errors.New("a GPU is healthy, or has a reason why not"))
	}
	if len(c.Reason) > MaxReason {
		err = errors.Join(err, fmt.Errorf("reason: longer than %d bytes", MaxReason))
	}
	return err
}
