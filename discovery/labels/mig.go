package labels

import (
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// mig sets the labels of MIG devices as gpu-feature-discovery does under each
// strategy.
func (b *builder) mig(groups []model.Group) {
	capable := slices.ContainsFunc(b.machine.GPUs, func(g machine.GPU) bool { return g.MIG.Capable })
	b.setBool(b.domains.VendorKey(wellknown.MIGCapable), capable)
	switch b.config.MIGStrategy {
	case config.MIGSingle:
		b.setVendor(string(config.MIGSingle), wellknown.MIGStrategy)
		b.migSingle(groups)
	case config.MIGMixed:
		b.setVendor(string(config.MIGMixed), wellknown.MIGStrategy)
		for _, s := range slicesOf(groups) {
			b.migLabels(s, func(suffix string) string { return b.domains.MIGKey(s.device.Profile, suffix) })
		}
	case config.MIGNone:
	}
}

// slice is all MIG devices of one profile.
type slice struct {
	product string
	device  machine.MIGDevice
	count   int
}

// slicesOf counts MIG devices by profile, in the order of the groups and, in a
// group, of the profile's first appearance. Equal profiles of several models
// count together under the first.
func slicesOf(groups []model.Group) (found []slice) {
	for _, g := range groups {
		for i := range g.GPUs {
			for _, device := range g.GPUs[i].MIG.Devices {
				at := slices.IndexFunc(found, func(s slice) bool { return s.device.Profile == device.Profile })
				if at < 0 {
					at = len(found)
					found = append(found, slice{product: g.Product, device: device})
				}
				found[at].count++
			}
		}
	}
	return found
}

// migSingle gives the MIG devices the names of whole GPUs. That needs all
// GPUs cut, and all cut alike.
func (b *builder) migSingle(groups []model.Group) {
	var whole, empty int
	for i := range b.machine.GPUs {
		if mig := &b.machine.GPUs[i].MIG; !mig.Enabled {
			whole++
		} else if len(mig.Devices) == 0 {
			empty++
		}
	}
	found := slicesOf(groups)
	reason := ""
	switch {
	case whole == len(b.machine.GPUs):
		return
	case empty > 0:
		reason = "a GPU with MIG on has no MIG devices"
	case whole > 0:
		reason = "MIG is on on some GPUs and off on others"
	case len(found) > 1:
		reason = "there are MIG devices of several profiles"
	case len(found) == 0:
		reason = "the GPUs with MIG devices do not report their product"
	}
	if reason != "" {
		b.problem(b.domains.VendorKey(wellknown.MIGStrategy), "strategy single: "+reason)
		b.set(b.domains.Product(), groups[0].Product+"-MIG-INVALID")
		for _, suffix := range []string{wellknown.GPUCount, wellknown.GPUReplicas, wellknown.GPUMemory} {
			b.setInt(b.domains.GPUKey(suffix), 0)
		}
		return
	}
	b.migLabels(found[0], b.domains.GPUKey)
}

// migLabels sets what describes one profile.
func (b *builder) migLabels(s slice, key func(suffix string) string) {
	b.set(key(wellknown.GPUProduct), s.product+"-MIG-"+wellknown.MIGProfile(s.device.Profile))
	b.set(key(wellknown.GPUSharingStrategy), "none")
	for _, attribute := range []struct {
		suffix string
		value  int64
	}{
		{wellknown.GPUCount, int64(s.count)},
		{wellknown.GPUReplicas, 1},
		{wellknown.GPUMemory, s.device.MemoryMiB},
		{wellknown.MIGMultiprocessors, int64(s.device.Multiprocessors)},
		{wellknown.MIGSlicesGI, int64(s.device.GPUSlices)},
		{wellknown.MIGSlicesCI, int64(s.device.ComputeSlices)},
		{wellknown.MIGEnginesCopy, int64(s.device.CopyEngines)},
		{wellknown.MIGEnginesDecoder, int64(s.device.DecoderEngines)},
		{wellknown.MIGEnginesEncoder, int64(s.device.EncoderEngines)},
		{wellknown.MIGEnginesJPEG, int64(s.device.JPEGEngines)},
		{wellknown.MIGEnginesOFA, int64(s.device.OFAEngines)},
	} {
		b.setInt(key(attribute.suffix), attribute.value)
	}
}
