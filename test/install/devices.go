package install

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/heddle-dev/heddle/api/machine"
)

// DeviceNodes makes a character device in dir for every GPU of a machine file,
// named by UUID, and for its HCAs as below /dev: what a replayed machine hands
// to containers. The nodes have no driver: an open that the device cgroup lets
// through ends with ENXIO, one that it forbids with EPERM.
func DeviceNodes(dump, dir string) error {
	text, err := os.ReadFile(dump)
	if err != nil {
		return fmt.Errorf("device nodes of a machine: %w", err)
	}
	m, err := machine.Decode(text)
	if err != nil {
		return fmt.Errorf("device nodes of %s: %w", dump, err)
	}
	names := []string{"infiniband/rdma_cm"}
	for i := range m.GPUs {
		names = append(names, m.GPUs[i].UUID)
	}
	for i := range m.HCAs {
		for _, node := range m.HCAs[i].CharDevices.UVerbs {
			names = append(names, filepath.Join("infiniband", node))
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "infiniband"), 0o755); err != nil {
		return fmt.Errorf("make room for device nodes: %w", err)
	}
	const major = 240 // For local and experimental use: Documentation/admin-guide/devices.txt.
	for minor, name := range names {
		if err := syscall.Mknod(filepath.Join(dir, name), syscall.S_IFCHR|0o666, major<<8|minor); err != nil {
			return fmt.Errorf("make device node %s: %w", name, err)
		}
	}
	return nil
}
