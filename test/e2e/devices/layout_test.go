//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
)

// layOut makes the files that the node needs.
func (r *rig) layOut(o options) error {
	for _, dir := range []string{"gpus", "infiniband", "state", "static", "config"} {
		if err := os.Mkdir(filepath.Join(r.dir, dir), 0o755); err != nil {
			return err
		}
	}
	// The plugin's --dev-root, gpus, has the HCAs' nodes too.
	if err := os.Symlink("../infiniband", filepath.Join(r.dir, "gpus", "infiniband")); err != nil {
		return err
	}
	if o.stateSize != "" {
		// Before the cluster, whose node gets the host's mounts.
		if err := unix.Mount("tmpfs", r.stateDir(), "tmpfs", 0, "size="+o.stateSize); err != nil {
			return fmt.Errorf("mount the state directory: %w", err)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "machines", defaulted(o.machine, "dgx-h100")+".json"))
	if err != nil {
		return err
	}
	m, err := machine.Decode(text)
	if err != nil {
		return err
	}
	if o.edit != nil {
		o.edit(m)
	}
	if err := r.writeMachine(m); err != nil {
		return err
	}
	if err := r.writeConfig(defaulted(o.config, quickHealth)); err != nil {
		return err
	}
	return r.makeNodes(m)
}

func defaulted(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (r *rig) stateDir() string { return filepath.Join(r.dir, "state") }

func (r *rig) machineFile() string { return filepath.Join(r.dir, "machine.json") }

func (r *rig) writeMachine(m *machine.Machine) error {
	b, err := machine.Encode(m)
	if err != nil {
		return err
	}
	return replaceFile(r.machineFile(), b)
}

func (r *rig) writeConfig(cluster string) error {
	dir := filepath.Join(r.dir, "config")
	return errors.Join(
		replaceFile(filepath.Join(dir, "version"), []byte("v1")),
		replaceFile(filepath.Join(dir, "cluster-config"), []byte(cluster)))
}

// replaceFile is seen whole or not at all.
func replaceFile(path string, content []byte) error {
	if err := os.WriteFile(path+".new", content, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// makeNodes makes a device node for every GPU and every partition of one, by UUID,
// and for every uverbs.
func (r *rig) makeNodes(m *machine.Machine) error {
	majors, err := freeMajors(2)
	if err != nil {
		return err
	}
	mknod := func(dir, name string, major uint32, minor int) error {
		path := filepath.Join(r.dir, dir, name)
		// 0666 as the driver makes them: file modes must not be what denies access.
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(major, uint32(minor)))); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		return os.Chmod(path, 0o666)
	}
	for i := range m.GPUs {
		if err := mknod("gpus", m.GPUs[i].UUID, majors[0], i); err != nil {
			return err
		}
		for j := range m.GPUs[i].MIG.Devices {
			if err := mknod("gpus", m.GPUs[i].MIG.Devices[j].UUID, majors[0], len(m.GPUs)*(j+1)+i); err != nil {
				return err
			}
		}
	}
	for i := range m.HCAs {
		for _, name := range m.HCAs[i].CharDevices.UVerbs {
			if err := mknod("infiniband", name, majors[1], i); err != nil {
				return err
			}
		}
	}
	return mknod("infiniband", "rdma_cm", majors[1], 255)
}

// freeMajors are majors of character devices that no driver has: an open of
// them is ENXIO. They are of the range for local use, then of the dynamic one.
func freeMajors(n int) ([]uint32, error) {
	b, err := os.ReadFile("/proc/devices")
	if err != nil {
		return nil, err
	}
	chars, _, _ := strings.Cut(string(b), "Block devices:")
	var taken []int
	for line := range strings.Lines(chars) {
		if f := strings.Fields(line); len(f) == 2 {
			if major, err := strconv.Atoi(f[0]); err == nil {
				taken = append(taken, major)
			}
		}
	}
	var free []uint32
	for _, major := range []int{240, 241, 242, 243, 60, 61, 62, 63, 120, 121, 122, 123} {
		if !slices.Contains(taken, major) && len(free) < n {
			free = append(free, uint32(major))
		}
	}
	if len(free) < n {
		return nil, errors.New("all character majors for local use are taken")
	}
	return free, nil
}

// machine is what the plugin replays now.
func (r *rig) machine(t *testing.T) *machine.Machine {
	t.Helper()
	b, err := os.ReadFile(r.machineFile())
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
