package gpu

import (
	"fmt"
	"maps"

	"github.com/heddle-dev/heddle/api/machine"
)

// Source is one vendor's GPUs on this node.
type Source struct {
	Vendor  *Vendor
	Library Library
	// Telemetry is nil for a vendor that is scanned only.
	Telemetry Telemetry
	// Edits is nil for a vendor whose devices are not known to CDI.
	Edits EditsGenerator
}

// Sources are those of all vendors.
type Sources []Source

// Vendors are the vendors of the sources.
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
		if one.Telemetry != nil {
			all = append(all, NewPoller(one.Telemetry, 0))
		}
	}
	return all
}

// Generate implements [EditsGenerator]: every vendor makes the devices of its
// own GPUs. An error of one vendor is one of all, since a spec without a
// driver's libraries would break the containers that run.
func (s Sources) Generate(m *machine.Machine) (*Edits, error) {
	out := &Edits{Missing: map[string]string{}}
	vendors := s.Vendors()
	for _, one := range s {
		own := *m
		own.GPUs = nil
		for i := range m.GPUs {
			if vendors.Of(m, &m.GPUs[i]) == one.Vendor {
				own.GPUs = append(own.GPUs, m.GPUs[i])
			}
		}
		if one.Edits == nil || len(own.GPUs) == 0 {
			continue
		}
		edits, err := one.Edits.Generate(&own)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.Vendor.Name, err)
		}
		out.Devices = append(out.Devices, edits.Devices...)
		maps.Copy(out.Missing, edits.Missing)
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
