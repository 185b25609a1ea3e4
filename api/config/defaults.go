package config

import (
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// KeepWithoutDriver is how long a Node keeps heddle's labels and taints while the PCI bus shows GPUs and their driver
// is absent, as after a reboot: without them, pods that a taint keeps off would land.
const KeepWithoutDriver = 15 * time.Minute

// Default returns the defaults with the names that they have on a node with NVIDIA's GPUs.
func Default() NodeConfig {
	return Builtin().Cluster.ForVendor(wellknown.DefaultDomains().Vendor)
}

// Builtin returns the configuration of a cluster without any.
func Builtin() *Config {
	c := defaults()
	c.deriveNames()
	return New(c)
}

// defaults returns the values under everything that is written out.
func defaults() NodeConfig {
	return NodeConfig{
		Mode:        ModeNative,
		GPUs:        GPUs{Exclude: []Glob{ExcludeDisplay}},
		SGPU:        defaultSGPU(),
		Claims:      Claims{HCASharers: 1},
		MIGStrategy: MIGNone,
		Domains:     wellknown.AutoDomains(),
		Resources:   Resources{VMemoryUnit: GiB},
		RDMA: RDMA{Resources: []RDMAResource{{
			Name:      wellknown.RDMAResource,
			Sharers:   defaultSharers,
			Count:     CountDistinct,
			Selectors: Selectors{Roles: []machine.Role{machine.RoleFabric}},
		}}},
		Health:        defaultHealth(),
		Topology:      defaultTopology(),
		Taints:        Taints{Effect: NoSchedule},
		LabelConflict: Yield,
	}
}

func defaultSGPU() SGPU {
	return SGPU{
		SlotsPerGPU: 16, MemoryOvercommit: 1,
		Defaults:    DefaultShare(),
		Enforce:     Enforce{Memory: EnforceAuto, Compute: EnforceAuto},
		Advertise:   AdvertiseAuto,
		Unscheduled: UnscheduledPlace,
		HAMi:        HAMiAuto,
		Placement:   PlacementBinpack,
		RejectedFor: time.Minute,
	}
}

// DefaultShare returns a GPU to itself.
func DefaultShare() ShareDefaults {
	return ShareDefaults{VCore: 100, VMemoryPercentage: 100, Policy: FixedShare}
}

func defaultHealth() Health {
	return Health{
		DownAfter: 10 * time.Second, UpAfter: 30 * time.Second,
		Remediation: RemediationNone, RemediateAfter: 2 * time.Minute,
		MaxWithdrawnPercent: 10, ProbeAfter: time.Minute,
	}
}

func defaultTopology() Topology {
	return Topology{
		Mode: TopologyAuto, NodeNumber: 2,
		Sources: []TopologySource{SourceIB, SourceLLDP, SourceNVLink, SourceStatic, SourceClusterManager},
	}
}

// applyPreset sets what the preset changes, unless it is written out.
func (c *NodeConfig) applyPreset(written bool) {
	if !written {
		c.Taints.GPUProduct = c.Preset == PresetScheme
	}
}

const defaultSharers = 64

// deriveNames fills what was left to be built from other keys.
func (c *NodeConfig) deriveNames() {
	d := c.Domains
	exclusive := d.GPUResource()
	if c.Resources.SGPU == exclusive {
		exclusive += ".exclusive"
	}
	for _, name := range []struct {
		to      *string
		derived string
	}{
		{&c.Resources.GPU, exclusive},
		{&c.Resources.SGPU, d.SGPUResource()},
		{&c.Resources.VCore, d.VCoreResource()},
		{&c.Resources.VMemory, d.VMemoryResource()},
	} {
		if *name.to == "" {
			*name.to = name.derived
		}
	}
	c.RDMA.Resources = slices.Clone(c.RDMA.Resources)
	for i := range c.RDMA.Resources {
		r := &c.RDMA.Resources[i]
		if r.Sharers == 0 {
			r.Sharers = defaultSharers
		}
		if r.Count == "" {
			r.Count = CountDistinct
		}
		if r.Selectors.empty() {
			r.Selectors.Roles = []machine.Role{machine.RoleFabric}
		}
	}
}
