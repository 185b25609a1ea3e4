package gpu

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
)

// Edits are what containers need of a driver.
type Edits struct {
	// Common is for every container with a GPU: libraries, control nodes.
	Common specs.ContainerEdits
	// Devices are named by UUID, and those of [Features] by their names.
	Devices []specs.Device
	// Missing are devices that could not be made, and why.
	Missing map[string]string
}

// EditsGenerator makes the content of a driver's static CDI spec. It may take
// seconds, or hang with the driver. The [Library] of a vendor has one for real
// GPUs; [ReplayedEdits] is for those of a machine file.
type EditsGenerator interface {
	Generate(m *machine.Machine) (*Edits, error)
}

// Features are what containers with GPUs get besides, if the host has it:
// GDRCopy is /dev/gdrdrv, GDS the nodes of GPUDirect Storage.
type Features struct{ GDRCopy, GDS bool }

// ReplayedEdits makes CDI devices for the GPUs of a machine file out of device nodes
// made for them: the character device DIR/UUID stands for the GPU
// or MIG device UUID, and a container finds it where it would find the real
// one, as [Vendor.Node] and its number: the GPU's minor or else its index. An
// instance is NODE-M, M counted from 0. There are no libraries: this is for
// tests of the device cgroup and for demos.
type ReplayedEdits struct {
	// Dir is the directory, as the container runtime sees it.
	Dir string
	// Vendors are those of the GPUs.
	Vendors Vendors
}

// Generate implements [EditsGenerator]. A GPU without a node is missing, and what is
// not a character device too.
func (r ReplayedEdits) Generate(m *machine.Machine) (*Edits, error) {
	out := &Edits{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		number := g.Index
		if g.Minor != nil {
			number = *g.Minor
		}
		vendor := r.Vendors.Of(m, g)
		if vendor == nil {
			out.Missing[g.UUID] = "the vendor of " + g.PCI + " is not known"
			continue
		}
		path := vendor.Node + strconv.Itoa(number)
		if len(g.MIG.Devices) == 0 {
			out.add(r.Dir, g.UUID, path)
		}
		for j := range g.MIG.Devices {
			out.add(r.Dir, g.MIG.Devices[j].UUID, path+"-"+strconv.Itoa(j))
		}
	}
	return out, nil
}

func (e *Edits) add(dir, uuid, path string) {
	host := filepath.Join(dir, filepath.Base(uuid))
	info, err := os.Lstat(host)
	if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
		err = fmt.Errorf("%s is not a character device", host)
	}
	if err != nil {
		e.Missing[uuid] = err.Error()
		return
	}
	e.Devices = append(e.Devices, specs.Device{Name: uuid, ContainerEdits: specs.ContainerEdits{
		DeviceNodes: []*specs.DeviceNode{{Path: path, HostPath: host, Type: "c", Permissions: "rw"}},
	}})
}
