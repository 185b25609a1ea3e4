// Package replica names the replicas of a device that pods share, and prefers
// some of them: an HCA or a shared GPU is offered as many device IDs, each with
// one holder. A device that one pod has alone has its own name as device ID. The
// package knows no devices.
package replica

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Separator is between the device and the number. PCI addresses and GUIDs have
// single colons.
const Separator = "::"

// ID is the device ID of one replica of a device, such as GPU-…::3.
func ID(device string, number int) string { return device + Separator + strconv.Itoa(number) }

// Parse is the reverse of [ID].
func Parse(id string) (device string, number int, err error) {
	at := strings.LastIndex(id, Separator)
	if at <= 0 {
		return "", 0, fmt.Errorf("invalid device ID %q: not a replica such as 0000:18:00.0::3", id)
	}
	number, err = strconv.Atoi(id[at+len(Separator):])
	if err != nil || number < 0 || strconv.Itoa(number) != id[at+len(Separator):] {
		return "", 0, fmt.Errorf("invalid device ID %q: no replica number after %q", id, Separator)
	}
	return id[:at], number, nil
}

// IsReplica reports whether an ID is a replica's, and not a device's own name.
func IsReplica(id string) bool { return strings.Contains(id, Separator) }

// DeviceOf is the device that an ID names.
func DeviceOf(id string) string {
	device, _, _ := strings.Cut(id, Separator)
	return device
}

// Devices are the devices that IDs name, sorted and without repeats.
func Devices(ids []string) []string {
	devices := make([]string, len(ids))
	for i, id := range ids {
		devices[i] = DeviceOf(id)
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// Device is a device with the replicas of it that a choice is made of.
type Device struct {
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

// Prefer chooses size replicas of available, with must among them, of as many
// different devices as there are; of those with equally many chosen the first in
// the order of compare, and of each the lowest numbers.
func Prefer(available, must []string, size int, compare func(a, b *Device) int) ([]string, error) {
	for _, id := range slices.Concat(must, available) {
		if _, _, err := Parse(id); err != nil {
			return nil, err
		}
	}
	return PreferOwn(available, must, size, compare)
}

// PreferOwn is [Prefer] where IDs may also be devices' own names.
func PreferOwn(available, must []string, size int, compare func(a, b *Device) int) ([]string, error) {
	if size > len(available) || size < len(must) {
		return nil, fmt.Errorf("%d of %d replicas with %d given", size, len(available), len(must))
	}
	devices, err := group(available, must)
	if err != nil {
		return nil, err
	}
	chosen := slices.Clone(must)
	for len(chosen) < size {
		devices = slices.DeleteFunc(devices, func(d *Device) bool { return len(d.available) == 0 })
		if len(devices) == 0 {
			return nil, errors.New("a replica is given that is not available")
		}
		next := slices.MinFunc(devices, func(a, b *Device) int {
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
func group(available, must []string) ([]*Device, error) {
	var all []*Device
	seen := map[string]bool{}
	for i, id := range slices.Concat(must, available) {
		name, number := id, 0
		if IsReplica(id) {
			var err error
			if name, number, err = Parse(id); err != nil {
				return nil, err
			}
		}
		if seen[id] {
			continue
		}
		seen[id] = true
		at := slices.IndexFunc(all, func(d *Device) bool { return d.Name == name })
		if at < 0 {
			at = len(all)
			all = append(all, &Device{Name: name})
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
