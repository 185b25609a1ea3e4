package gpu

import (
	"sync"

	"github.com/heddle-dev/heddle/api/machine"
)

// LinkCounters gathers the error counters of the links of GPUs in scans, while the sessions with the drivers are open.
// A nil one gathers nothing.
type LinkCounters struct {
	mu   sync.Mutex
	gpus map[string]map[string]machine.LinkErrors
}

// NewLinkCounters returns counters that the next scan reads.
func NewLinkCounters() *LinkCounters {
	return &LinkCounters{gpus: map[string]map[string]machine.LinkErrors{}}
}

// Due reports whether the counters of a GPU have to be read: once after each Take.
func (c *LinkCounters) Due(uuid string) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.gpus[uuid]
	return !ok
}

// Put keeps the counters of a GPU by the link's name.
func (c *LinkCounters) Put(uuid string, links map[string]machine.LinkErrors) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gpus[uuid] = links
}

// Take returns the counters by the UUID of the GPU and the name of the link.
func (c *LinkCounters) Take() map[string]map[string]machine.LinkErrors {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.gpus
	c.gpus = map[string]map[string]machine.LinkErrors{}
	return all
}
