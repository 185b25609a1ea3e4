package resource

import (
	"errors"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// replicated is a device with its replicas that a choice is made of.
type replicated struct {
	Name string
	// Taken counts the chosen replicas, Free those that were available.
	Taken, Free int
	available   []numbered
}

// numbered is an ID with the number of its replica, 0 for a device's own name.
type numbered struct {
	number int
	id     string
}

// preferReplicas chooses size IDs of available, with must among them, of as many
// different devices as there are; of those with equally many chosen the first in
// the order of compare, and of each the lowest numbers. IDs are replicas or devices' own names.
func preferReplicas(available, must []string, size int, compare func(a, b *replicated) int) ([]string, error) {
	if size > len(available) || size < len(must) {
		return nil, fmt.Errorf("%d of %d replicas with %d given", size, len(available), len(must))
	}
	devices, err := group(available, must)
	if err != nil {
		return nil, err
	}
	chosen := slices.Clone(must)
	for len(chosen) < size {
		devices = slices.DeleteFunc(devices, func(d *replicated) bool { return len(d.available) == 0 })
		if len(devices) == 0 {
			return nil, errors.New("a replica is given that is not available")
		}
		next := slices.MinFunc(devices, func(a, b *replicated) int {
			if a.Taken != b.Taken {
				return a.Taken - b.Taken
			}
			return compare(a, b)
		})
		chosen = append(chosen, next.available[0].id)
		next.available = next.available[1:]
		next.Taken++
	}
	slices.Sort(chosen)
	return chosen, nil
}

// group sorts replicas by device.
func group(available, must []string) ([]*replicated, error) {
	var all []*replicated
	seen := map[string]bool{}
	for i, id := range slices.Concat(must, available) {
		name, number := id, 0
		if inventory.IsReplica(id) {
			var err error
			if name, number, err = inventory.ParseReplica(id); err != nil {
				return nil, err
			}
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		at := slices.IndexFunc(all, func(d *replicated) bool { return d.Name == name })
		if at < 0 {
			at = len(all)
			all = append(all, &replicated{Name: name})
		}
		if i < len(must) {
			all[at].Taken++
		} else {
			all[at].available = append(all[at].available, numbered{number, id})
		}
	}
	for _, d := range all {
		slices.SortFunc(d.available, func(a, b numbered) int { return a.number - b.number })
		d.Free = len(d.available)
	}
	return all, nil
}
