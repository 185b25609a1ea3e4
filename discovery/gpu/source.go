package gpu

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
)

// Source is one vendor's GPUs on this node.
type Source struct {
	Vendor  *Vendor
	Library Library
}

// Options locate the drivers of a machine.
type Options struct {
	// HostRoot is where this process sees the host's root; empty is its own.
	// DriverRoot is where the driver is installed on the host. Empty finds it there,
	// with HostRoot, and leaves its library to the dynamic loader without.
	HostRoot, DriverRoot string
	// DevRoot is the host's /dev, at the same path here and for the container
	// runtime. It has the device nodes where the driver's root has none.
	DevRoot string
	// SysfsRoot is where the host's sysfs is, usually /sys.
	SysfsRoot string
	// Hook is the vendor's CDI hook on the host, or [AutoHook]; empty leaves hooks out:
	// images must then find the driver's libraries by themselves.
	Hook string
	// Features are optional parts for containers with GPUs.
	Features Features
	// LinkCounters gets the error counters of the GPUs' links; nil for none.
	LinkCounters *LinkCounters
	// Log gets what the vendors' libraries log, at debug level; nil discards.
	Log *slog.Logger
}

// AutoHook is the vendor's CDI hook where its software usually has it.
const AutoHook = "auto"

// Sources are the sources of all vendors.
type Sources []Source

// Vendors returns the vendors of the sources.
func (s Sources) Vendors() Vendors {
	var all Vendors
	for _, one := range s {
		all = append(all, one.Vendor)
	}
	return all
}

// Pollers poll the sources that have telemetry.
func (s Sources) Pollers() Pollers {
	var all Pollers
	for _, one := range s {
		if t, ok := one.Library.(Telemetry); ok {
			all = append(all, NewPoller(t))
		}
	}
	return all
}

// Occupancy describes the use of a GPU or a part of one. Used are the bytes of its memory in use without the driver's
// own, -1 if unknown, and at most Idle while no process has any.
type Occupancy struct {
	Processes  []Process
	Used, Idle int64
}

// Occupied is a [Library] whose driver knows what is on a GPU or a part of one, by UUID: ErrAbsent if the open session
// has not read it. A call may block for ever.
type Occupied interface {
	Occupancy(uuid string) (Occupancy, error)
}

// Occupancy implements [Occupied].
func (s Sources) Occupancy(uuid string) (on Occupancy, err error) {
	err = ErrAbsent
	for i := 0; i < len(s) && errors.Is(err, ErrAbsent); i++ {
		if driver, ok := s[i].Library.(Occupied); ok {
			on, err = driver.Occupancy(uuid)
		}
	}
	return on, err
}

// Generate implements [EditsGenerator]: every vendor makes the devices of its
// own GPUs. An error of one vendor is one of all, since a spec without a
// driver's libraries would break the containers that run.
func (s Sources) Generate(m *machine.Machine) (*Edits, error) {
	out := &Edits{Missing: map[string]string{}, Channels: map[int]*specs.DeviceNode{}}
	vendors := s.Vendors()
	for _, one := range s {
		own := *m
		own.GPUs = nil
		for i := range m.GPUs {
			if vendors.Of(m, &m.GPUs[i]) == one.Vendor {
				own.GPUs = append(own.GPUs, m.GPUs[i])
			}
		}
		generator, ok := one.Library.(EditsGenerator)
		if !ok || len(own.GPUs) == 0 {
			continue
		}
		edits, err := generator.Generate(&own)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.Vendor.Name, err)
		}
		out.Devices = append(out.Devices, edits.Devices...)
		maps.Copy(out.Missing, edits.Missing)
		maps.Copy(out.Channels, edits.Channels)
		out.Problems = append(out.Problems, edits.Problems...)
		c := &out.Common
		c.Env = append(c.Env, edits.Common.Env...)
		c.DeviceNodes = append(c.DeviceNodes, edits.Common.DeviceNodes...)
		c.Mounts = append(c.Mounts, edits.Common.Mounts...)
		c.Hooks = append(c.Hooks, edits.Common.Hooks...)
		c.NetDevices = append(c.NetDevices, edits.Common.NetDevices...)
		c.AdditionalGIDs = append(c.AdditionalGIDs, edits.Common.AdditionalGIDs...)
	}
	return out, nil
}

// Fingerprint implements [EditsGenerator] with those of all vendors.
func (s Sources) Fingerprint() string {
	var all strings.Builder
	for _, one := range s {
		if generator, ok := one.Library.(EditsGenerator); ok {
			all.WriteString(generator.Fingerprint())
		}
	}
	return all.String()
}
