package kfd

import (
	"errors"
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// maxPartitions is the number of values of four bits of location_id.
const maxPartitions = 16

// partitions reads how a GPU is cut. Its partitions have one unique_id, so that
// the number of a partition is a part of its identity.
// fault is the error of the topology, with which a node may be missing.
func (l *Library) partitions(g *machine.GPU, d *device, fault error) (machine.MIG, error) {
	dir := "bus/pci/devices/" + d.address
	compute, err := l.mode(dir + "/current_compute_partition")
	if err != nil {
		return machine.MIG{}, err
	}
	memory, err := l.mode(dir + "/current_memory_partition")
	if err != nil {
		return machine.MIG{}, err
	}
	mig := machine.MIG{
		Capable: compute != "" || len(d.nodes) > 1, Enabled: len(d.nodes) > 1,
		Mode: strings.ToUpper(strings.Trim(compute+"/"+memory, "/")),
	}
	switch least, most := nodesOf(compute, d.nodes[0]); {
	case len(d.nodes) < least || len(d.nodes) > most:
		return mig, errors.Join(fmt.Errorf("%w: it is %s, and the topology has %d nodes of the GPU", errChanging,
			strings.ToUpper(compute), len(d.nodes)), fault)
	case fault != nil && least != most:
		return mig, fault
	}
	if !mig.Enabled {
		return mig, nil
	}
	for _, n := range d.nodes {
		mib, err := l.banks(n)
		if err != nil {
			return mig, err
		}
		mig.Devices = append(mig.Devices, machine.MIGDevice{
			UUID: machine.Partition(g.UUID, n.partition), Profile: profile(compute, memory),
			MemoryMiB: mib, Multiprocessors: n.computeUnits(), GPUSlices: 1, ComputeSlices: 1, Minor: new(n.render()),
		})
	}
	return mig, nil
}

// mode reads a partition mode in lower case; empty where the GPU has none. The
// driver answers UNKNOWN, or EPERM, while the GPU is reset.
func (l *Library) mode(name string) (string, error) {
	text, err := l.fs.Read(name)
	switch {
	case sysfs.Unknown(err):
		return "", nil
	case err != nil:
		return "", err
	case strings.EqualFold(text, "unknown") || strings.ContainsFunc(text, notAlphanumeric) || len(text) > 8:
		return "", fmt.Errorf("%w: %s is %.20q", errChanging, l.fs.Path(name), text)
	}
	return strings.ToLower(text), nil
}

func notAlphanumeric(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}

// profile returns how AMD's device plugin and node labeller write a mode: cpx_nps4.
func profile(compute, memory string) string { return strings.Trim(compute+"_"+memory, "_") }

// nodesOf returns how many topology nodes a GPU in a mode has. In CPX every compute die
// is one: a node of several dies is not of that mode.
func nodesOf(compute string, first node) (least, most int) {
	switch compute {
	case "", "spx":
		return 1, 1
	case "dpx":
		return 2, 2
	case "tpx":
		return 3, 3
	case "qpx":
		return 4, 4
	case "cpx":
		if first.properties["num_xcc"] > 1 {
			return 2, maxPartitions
		}
	}
	return 1, maxPartitions
}
