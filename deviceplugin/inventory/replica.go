package inventory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ReplicaSeparator is between a device and the number of a replica in device IDs: a
// device that pods share is offered as several IDs, each with one holder. PCI
// addresses and GUIDs have single colons.
const ReplicaSeparator = "::"

// ReplicaID returns the device ID of one replica of a device, such as GPU-…::3.
func ReplicaID(device string, number int) string {
	return device + ReplicaSeparator + strconv.Itoa(number)
}

// ParseReplica returns the reverse of [ReplicaID].
func ParseReplica(id string) (device string, number int, err error) {
	at := strings.LastIndex(id, ReplicaSeparator)
	if at <= 0 {
		return "", 0, fmt.Errorf("invalid device ID %q: not a replica such as 0000:18:00.0::3", id)
	}
	number, err = strconv.Atoi(id[at+len(ReplicaSeparator):])
	if err != nil || number < 0 || strconv.Itoa(number) != id[at+len(ReplicaSeparator):] {
		return "", 0, fmt.Errorf("invalid device ID %q: no replica number after %q", id, ReplicaSeparator)
	}
	return id[:at], number, nil
}

// IsReplica reports whether an ID is a replica's, and not a device's own name.
func IsReplica(id string) bool { return strings.Contains(id, ReplicaSeparator) }

// DeviceOf returns the device that an ID names.
func DeviceOf(id string) string {
	device, _, _ := strings.Cut(id, ReplicaSeparator)
	return device
}

// DevicesOf returns the devices that IDs name, sorted and without repeats.
func DevicesOf(ids []string) []string {
	devices := make([]string, len(ids))
	for i, id := range ids {
		devices[i] = DeviceOf(id)
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}
