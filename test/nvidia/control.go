package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Any stands for every GPU or every argument in Failure and Delay.
const Any = -1

// Control is what the kernel side answers. The library reads it at every call.
type Control struct {
	// Kernel is the version of the loaded module; empty if none is loaded.
	Kernel string
	GPUs   []GPU
	// Processes have contexts on a GPU.
	Processes []Process
	// Errors has the counters of NVLinks; the others are 0.
	Errors []LinkErrors
	// Events are delivered once to each event set, in order: append only.
	Events   []Event
	Failures []Failure
	Delays   []Delay
}

// GPU is one GPU of the machine, in NVML's values.
type GPU struct {
	UUID, PCI, Name string
	Minor           int
	MemoryMiB       int64
	// MIG is -1 for a GPU without the mode, 0 for off, for on 1 and the number
	// of its instances.
	MIG int
	// Links lead to NVSwitches.
	Links int
	// Fabric is the registration with the NVLink fabric, NVML_GPU_FABRIC_STATE_*;
	// Status its outcome, an nvmlReturn_t; HealthMask NVML_GPU_FABRIC_HEALTH_MASK_*.
	Fabric, Status, HealthMask, Clique int
}

// Process is a program that uses a GPU, by index. With PID 0 it is memory in use that no listed process has.
type Process struct {
	GPU, PID int
	Bytes    int64
}

// LinkErrors are the error counters of an NVLink of a GPU.
type LinkErrors struct {
	GPU, Link                int
	Replays, Recoveries, CRC int64
}

// Event is an entry of nvmlEventSetWait: a type (nvmlEventType*) and its data,
// an XID for critical errors.
type Event struct {
	GPU        int
	Type, Data uint64
}

// Failure makes a function ("DeviceGetMigMode": NVML's name without nvml) answer
// an nvmlReturn_t, for one GPU and one argument such as a link's number, or Any.
type Failure struct {
	Function string
	GPU, Arg int
	Return   int
}

// Delay makes a function answer late.
type Delay struct {
	Function     string
	GPU          int
	Milliseconds int
}

// NoMIG is GPU.MIG of a GPU without the mode.
const NoMIG = -1

// NVML's return values that tests use.
const (
	NotSupported = 3
	Unknown      = 999
	GPUIsLost    = 15
	OldStructure = 25 // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
	InProgress   = 2  // NVML_GPU_FABRIC_STATE_IN_PROGRESS
	Completed    = 3  // NVML_GPU_FABRIC_STATE_COMPLETED
)

// Of are the GPUs of a machine file, under a driver of its version.
func Of(m *machine.Machine) Control {
	c := Control{Kernel: m.Driver.Version}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		one := GPU{UUID: g.UUID, PCI: g.PCI, Name: g.Product, MemoryMiB: g.MemoryMiB, MIG: NoMIG, Minor: g.Index}
		if g.Minor != nil {
			one.Minor = *g.Minor
		}
		if g.MIG.Capable {
			one.MIG = 0
		}
		if g.MIG.Enabled {
			one.MIG = 1 + len(g.MIG.Devices)
		}
		for _, l := range g.NVLinks {
			if l.Peer == machine.PeerNVSwitch {
				one.Links += l.Links
			}
		}
		if g.Fabric != nil {
			one.Fabric = Completed
		}
		c.GPUs = append(c.GPUs, one)
	}
	return c
}

// Set puts the control file in place of the one before, in one step.
func (d *Driver) Set(c Control) error {
	var b strings.Builder
	if c.Kernel != "" {
		fmt.Fprintln(&b, "kernel", c.Kernel)
	}
	for i, g := range c.GPUs {
		fmt.Fprintln(&b, "gpu", i, g.UUID, g.PCI, g.Minor, g.MemoryMiB, g.MIG, g.Links,
			g.Fabric, g.Status, g.HealthMask, g.Clique, g.Name)
	}
	for _, p := range c.Processes {
		fmt.Fprintln(&b, "process", p.GPU, p.PID, p.Bytes)
	}
	for _, e := range c.Errors {
		fmt.Fprintln(&b, "errors", e.GPU, e.Link, e.Replays, e.Recoveries, e.CRC)
	}
	for _, e := range c.Events {
		fmt.Fprintln(&b, "event", e.GPU, e.Type, e.Data)
	}
	for _, f := range c.Failures {
		fmt.Fprintln(&b, "fail", f.Function, f.GPU, f.Arg, f.Return)
	}
	for _, s := range c.Delays {
		fmt.Fprintln(&b, "slow", s.Function, s.GPU, s.Milliseconds)
	}
	path := filepath.Join(d.dir, "nvml.control")
	if err := os.WriteFile(path+".new", []byte(b.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
