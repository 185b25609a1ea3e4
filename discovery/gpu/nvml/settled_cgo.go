//go:build cgo && linux

package nvml

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// settled is a GPU with all slow parts that were read, at a time: its device node and
// compute capability are the driver's, ECC changes with a reset, for which no
// session may be open, and NVLinks when they fail. It counts for one session, and
// until the driver reports an event: a link that failed is among what events are of.
type settled struct {
	gpu machine.GPU
	at  time.Time
}

// slow reads what changes slowly.
func (l *Library) slow(device nvml.Device, g *machine.GPU, incomplete gpu.IncompleteError) {
	began := time.Now()
	minor, ret := device.GetMinorNumber()
	if ret == nvml.SUCCESS {
		g.Minor = &minor
	}
	incomplete.Note(gpu.PartMinor, fault("minor number", ret))
	major, revision, ret := device.GetCudaComputeCapability()
	if ret == nvml.SUCCESS {
		g.ComputeCapability, g.Architecture = fmt.Sprintf("%d.%d", major, revision), architecture(major, revision)
	}
	incomplete.Note(gpu.PartCapability, fault("compute capability", ret))
	ecc, _, ret := device.GetEccMode()
	if ret == nvml.SUCCESS {
		g.ECC = new(ecc == nvml.FEATURE_ENABLED)
	}
	incomplete.Note(gpu.PartECC, fault("ECC mode", ret))
	incomplete.Note(gpu.PartLinks, l.links(device, g))
	if len(incomplete) > 0 {
		return // It is asked again at once.
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled == nil {
		l.settled = map[string]settled{}
	}
	l.settled[g.UUID] = settled{*g, began}
}

// recall gives a GPU its slow parts, if they are known.
func (l *Library) recall(g *machine.GPU) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.settled[g.UUID]
	if !ok || s.gpu.PCI != g.PCI || time.Since(s.at) >= gpu.SettledFor {
		return false
	}
	g.Minor, g.ECC = s.gpu.Minor, s.gpu.ECC
	g.ComputeCapability, g.Architecture = s.gpu.ComputeCapability, s.gpu.Architecture
	g.NVLinks = slices.Clone(s.gpu.NVLinks)
	return true
}

// forget has everything read by the next scan.
func (l *Library) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = nil
}
