package sysfs

import (
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

const nodeDir = "devices/system/node"

// NUMA reads the online memory nodes, by ID. A kernel without NUMA has none.
func (f FS) NUMA() ([]machine.NUMANode, []machine.Skipped, error) {
	names, err := f.List(nodeDir)
	if err != nil {
		return nil, nil, err
	}
	var nodes []machine.NUMANode
	var skipped []machine.Skipped
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(digits)
		if !ok || err != nil || id < 0 {
			continue // has_cpu, online, possible, power...
		}
		node := machine.NUMANode{ID: id}
		note := func(err error) { skipped = append(skipped, machine.Skipped{Name: name, Reason: err.Error()}) }
		text, err := f.Read(nodeDir + "/" + name + "/cpulist")
		if err == nil {
			text, err = parseCPUList(text)
		}
		if err != nil {
			note(err)
			continue
		}
		node.CPUs = text
		if text, err = f.Read(nodeDir + "/" + name + "/distance"); err == nil {
			node.Distances, err = parseDistances(text)
		}
		if err != nil && !Unknown(err) {
			note(err)
		}
		nodes = append(nodes, node)
	}
	return nodes, skipped, nil
}
