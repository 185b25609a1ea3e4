package gpu

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// ChannelsDir is the directory of IMEX channels below /dev, and the name of their major number in /proc/devices.
const ChannelsDir = "nvidia-caps-imex-channels"

// Channel returns the device node of an IMEX channel in a container. The runtime makes it by its numbers: the host
// needs none.
func Channel(procRoot string, number int) (*specs.DeviceNode, error) {
	path := filepath.Join(procRoot, "devices")
	content, err := hostfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("IMEX channel %d: %w", number, err)
	}
	characters, _, _ := strings.Cut(string(content), "Block devices:")
	for line := range strings.Lines(characters) {
		major, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(major, 10, 64); err == nil && n > 0 && name == ChannelsDir {
			return &specs.DeviceNode{
				Path: filepath.Join("/dev", ChannelsDir, "channel"+strconv.Itoa(number)), Type: "c",
				Major: n, Minor: int64(number), Permissions: "rw",
			}, nil
		}
	}
	return nil, fmt.Errorf("IMEX channel %d: %s has no %s: the driver has no channels on this node",
		number, path, ChannelsDir)
}
