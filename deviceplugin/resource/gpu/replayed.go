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

// Replayed makes CDI devices for the GPUs of a machine file out of device nodes
// that somebody made for them: the character device DIR/UUID stands for the GPU
// or MIG device UUID, and a container finds it where it would find the real
// one, as /dev/nvidiaN, with N the GPU's minor or else its index. A MIG device
// is /dev/nvidiaN-M, M counted from 0. There are no libraries: this is for
// tests of the device cgroup and for demos.
type Replayed struct {
	// Dir is the directory, as the container runtime sees it.
	Dir string
}

// Generate implements [Generator]. A GPU without a node is missing, and what is
// not a character device too.
func (r Replayed) Generate(m *machine.Machine) (*Generated, error) {
	out := &Generated{Missing: map[string]string{}}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		number := g.Index
		if g.Minor != nil {
			number = *g.Minor
		}
		path := "/dev/nvidia" + strconv.Itoa(number)
		if len(g.MIG.Devices) == 0 {
			out.add(r.Dir, g.UUID, path)
		}
		for j := range g.MIG.Devices {
			out.add(r.Dir, g.MIG.Devices[j].UUID, path+"-"+strconv.Itoa(j))
		}
	}
	return out, nil
}

func (g *Generated) add(dir, uuid, path string) {
	host := filepath.Join(dir, filepath.Base(uuid))
	info, err := os.Lstat(host)
	if err == nil && info.Mode()&fs.ModeCharDevice == 0 {
		err = fmt.Errorf("%s is no character device", host)
	}
	if err != nil {
		g.Missing[uuid] = err.Error()
		return
	}
	g.Devices = append(g.Devices, specs.Device{Name: uuid, ContainerEdits: specs.ContainerEdits{
		DeviceNodes: []*specs.DeviceNode{{Path: path, HostPath: host, Type: "c", Permissions: "rw"}},
	}})
}
