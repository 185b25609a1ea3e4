package gpu

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Part is a part of a GPU that is read separately, in words.
type Part string

// The parts.
const (
	PartMinor      Part = "device node"
	PartCapability Part = "compute capability"
	PartECC        Part = "ECC"
	PartVGPU       Part = "vGPU"
	PartMIG        Part = "MIG"
	PartLinks      Part = "links"
	PartFabric     Part = "fabric"
	// PartPartitions is PartMIG in the words of other makers.
	PartPartitions Part = "partitions"
	PartMemory     Part = "memory"
)

// IncompleteError is the error of [Library.GPU] beside a GPU with parts that could not
// be read. That a GPU lacks a part is a value; every other answer is an
// error, and does not take the part away.
type IncompleteError map[Part]error

// Note keeps the error of a part, unless it is nil.
func (i IncompleteError) Note(part Part, err error) {
	if err != nil {
		i[part] = errors.Join(i[part], err)
	}
}

// Err is nil if every part was read. A part that answers that the GPU is lost
// answers for the whole GPU.
func (i IncompleteError) Err() error {
	for _, part := range i.parts() {
		if errors.Is(i[part], ErrLost) {
			return i[part]
		}
	}
	if len(i) == 0 {
		return nil
	}
	return i
}

// Error implements error.
func (i IncompleteError) Error() string {
	var all []string
	for _, part := range i.parts() {
		all = append(all, string(part)+": "+strings.ReplaceAll(i[part].Error(), "\n", ", "))
	}
	return strings.Join(all, "; ")
}

func (i IncompleteError) parts() []Part { return slices.Sorted(maps.Keys(i)) }

// sighting is the last answer of a GPU, and the parts that were never read; nil means all parts.
type sighting struct {
	gpu   machine.GPU
	never map[Part]bool
}

// complete gives a GPU the last known values of the parts that could not be
// read now. A GPU with an unknown MIG mode is not allocated: it may be
// cut into instances. One that the fabric did not take has no way to others
// through NVSwitches, whatever its links are.
func (i IncompleteError) complete(g *machine.GPU, last sighting) sighting {
	now := sighting{never: map[Part]bool{}}
	for part := range i {
		if last.never == nil || last.never[part] {
			now.never[part] = true
		} else {
			keep(g, &last.gpu, part)
		}
	}
	if now.never[PartMIG] && !g.MIG.Capable {
		g.Health = machine.Health{State: machine.Unhealthy, Reason: "its MIG mode is unknown: " + i[PartMIG].Error()}
	}
	if now.never[PartPartitions] {
		reason := "its partitions are unknown: " + i[PartPartitions].Error()
		g.Health = machine.Health{State: machine.Unhealthy, Reason: reason}
	}
	if g.Fabric != nil && g.Fabric.State == machine.FabricFailed {
		g.NVLinks = slices.DeleteFunc(slices.Clone(g.NVLinks), func(l machine.NVLink) bool {
			return l.Peer == machine.PeerNVSwitch
		})
	}
	now.gpu = *g
	return now
}

func keep(g, last *machine.GPU, part Part) {
	switch part {
	case PartMinor:
		g.Minor = last.Minor
	case PartCapability:
		g.ComputeCapability, g.Architecture = last.ComputeCapability, last.Architecture
	case PartECC:
		g.ECC = last.ECC
		if g.Health.State == machine.Healthy && last.Health.Cause == machine.UncorrectableErrors {
			g.Health = last.Health
		}
	case PartVGPU:
		g.VGPU = last.VGPU
	case PartMIG:
		// Where the mode was read and is another one, the old instances are gone.
		if !g.MIG.Capable || g.MIG.Enabled == last.MIG.Enabled {
			g.MIG = last.MIG
		}
	case PartPartitions:
		g.MIG = last.MIG
	case PartMemory:
		g.MemoryMiB = last.MemoryMiB
	case PartLinks:
		g.NVLinks = last.NVLinks
	case PartFabric:
		g.Fabric = last.Fabric
		if g.Fabric != nil && g.Fabric.State == machine.FabricInProgress {
			g.Health = last.Health
		}
	}
}
