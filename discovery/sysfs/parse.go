package sysfs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Place is where a device hangs, from its path under /sys/devices.
type Place struct {
	// Root is the host bridge: pci0000:16. Empty if the path has none.
	Root string
	// Functions are the PCI addresses on the path, from the root port down;
	// the last one is the device's own or the nearest above it.
	Functions []string
	// Virtual marks /sys/devices/virtual.
	Virtual bool
}

// Function returns the nearest PCI function, or "".
func (p Place) Function() string {
	if len(p.Functions) == 0 {
		return ""
	}
	return p.Functions[len(p.Functions)-1]
}

// ParsePlace reads a path such as
// "devices/pci0000:10/0000:10:01.0/0000:11:00.0/virtio3/net/eth0". A function
// behind VMD has two host bridges on its path; the first is its root.
func ParsePlace(path string) Place {
	var p Place
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "virtual" && len(p.Functions) == 0:
			p.Virtual = true
		case p.Root == "" && hostBridge.MatchString(part):
			p.Root = part
		default:
			if _, err := machine.ParseAddress(part); err == nil {
				p.Functions = append(p.Functions, part)
			}
		}
	}
	return p
}

var (
	// hostBridge is the name of one (pci_create_root_bus: "pci%04x:%02x").
	hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)
	hexWord    = regexp.MustCompile(`^0x[0-9a-f]{1,8}$`)
	cpuList    = regexp.MustCompile(`^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$`)
)

// parseHex reads a word such as 0x030200 and gives it back in lower case.
func parseHex(s string) (string, error) {
	word := strings.ToLower(s)
	if !hexWord.MatchString(word) {
		return "", fmt.Errorf("invalid hexadecimal word %q", wellknown.Clip(s))
	}
	return word, nil
}

// parseNUMA reads numa_node. -1 is NUMA_NO_NODE: the firmware has none, as
// on single-socket machines and in most virtual machines.
func parseNUMA(s string) (*int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < -1 || n > 1<<16 {
		return nil, fmt.Errorf("invalid NUMA node %q", wellknown.Clip(s))
	}
	if n == -1 {
		return nil, nil //nolint:nilnil // Unknown is a value here.
	}
	return &n, nil
}

// parseCPUList checks a list such as 0-55,112-167 and gives it back. Empty is
// a list too.
func parseCPUList(s string) (string, error) {
	if !cpuList.MatchString(s) {
		return "", fmt.Errorf("invalid list of CPUs %q", wellknown.Clip(s))
	}
	return s, nil
}

// parseDistances reads a node's row of the SLIT: "10 21".
func parseDistances(s string) ([]int, error) {
	fields := strings.Fields(s)
	distances := make([]int, 0, len(fields))
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("invalid row of distances %q", wellknown.Clip(s))
		}
		distances = append(distances, n)
	}
	return distances, nil
}

// parseLinkWidth reads current_link_width: lanes, 0 if unknown. 255 is the value of a
// function that fell off the bus reads as.
func parseLinkWidth(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 64 {
		return 0
	}
	return n
}
