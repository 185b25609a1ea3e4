package labels

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

func (b *builder) setInt(key string, value int64) { b.labels[key] = strconv.FormatInt(value, 10) }

func (b *builder) setBool(key string, value bool) { b.labels[key] = strconv.FormatBool(value) }

// gpus sets the labels of gpu-feature-discovery. As there, a machine without
// GPUs has none of them.
func (b *builder) gpus() {
	groups := model.Groups(b.machine.GPUs)
	if len(groups) == 0 {
		for i := range b.machine.GPUs {
			b.problem(b.domains.Product(), b.machine.GPUs[i].UUID+" does not report its product")
		}
		return
	}
	groupsOf := b.vendorLabels(groups[0])
	count := len(groups[0].GPUs)
	if len(groups) == 1 {
		count += b.machine.DriverOf(groups[0].GPUs[0].Vendor).Unidentified // A GPU that is lost is still in the node.
	}
	b.model(groups[0], count, groupsOf)
	b.models(groups)
	b.driver(groupsOf)
	if groupsOf.MIG {
		b.mig(groups)
	}
	b.fabric()
	b.virtual(groups[0], groupsOf)
	b.own(groups[0], groupsOf)
	b.set(b.domains.GPUKey(wellknown.GPUMachine), cmp.Or(wellknown.Value(b.machine.Product), "unknown"))
}

// own sets the labels that the maker's own node labeller writes, of the model that
// the machine has most of. A value in which its GPUs differ is left out.
func (b *builder) own(g model.Group, of gpu.Labels) {
	for _, name := range of.Own {
		value := g.GPUs[0].Attributes[name]
		same := !slices.ContainsFunc(g.GPUs, func(o machine.GPU) bool { return o.Attributes[name] != value })
		if same {
			b.set(b.domains.GPUKey(name), value)
		}
	}
}

// vendorLabels returns the groups of labels of the vendor of a model.
func (b *builder) vendorLabels(g model.Group) gpu.Labels {
	if v := b.vendors.Of(b.machine, &g.GPUs[0]); v != nil {
		return v.Labels
	}
	return gpu.Labels{}
}

// model sets the labels of the model that the machine has most of; count is the number of its GPUs. All
// values are of this one model: a mixture describes a GPU that does not exist.
func (b *builder) model(g model.Group, count int, of gpu.Labels) {
	d := b.domains
	b.set(d.Product(), g.Product)
	b.setInt(d.GPUKey(wellknown.GPUCount), int64(count))
	if mib := g.MemoryMiB(); mib > 0 {
		b.setInt(d.GPUKey(wellknown.GPUMemory), mib)
	}
	if major, minor, ok := strings.Cut(g.ComputeCapability(), "."); ok && of.CUDA {
		b.set(d.GPUKey(wellknown.GPUComputeMajor), major)
		b.set(d.GPUKey(wellknown.GPUComputeMinor), minor)
	}
	b.set(d.GPUKey(wellknown.GPUFamily), g.Architecture())
	b.set(d.GPUKey(wellknown.GPUMode), b.mode(g))
	strategy, replicas := b.sharing(g)
	b.set(d.GPUKey(wellknown.GPUSharingStrategy), strategy)
	b.setInt(d.GPUKey(wellknown.GPUReplicas), int64(replicas))
}

// mode returns "compute" or "graphics" by the PCI class of most GPUs: 3D controller,
// other display controller or processing accelerator, or VGA controller.
func (b *builder) mode(g model.Group) string {
	classes := map[string]int{}
	for i := range g.GPUs {
		if f := b.machine.Function(g.GPUs[i].PCI); f != nil {
			classes[f.Class[:min(len(f.Class), len("0x0302"))]]++
		}
	}
	switch compute, graphics := classes["0x0302"]+classes["0x0380"]+classes["0x1200"], classes["0x0300"]; {
	case compute == 0 && graphics == 0:
		return "unknown"
	case compute >= graphics:
		return "compute"
	}
	return "graphics"
}

// sharing returns how the group's GPUs are allocated: "none" exclusively, "sgpu" in
// shares, "hybrid" some of them in shares; and how many containers a shared
// GPU takes. As in gpu-feature-discovery, GPUs that are all cut by MIG have
// 0 replicas.
func (b *builder) sharing(g model.Group) (strategy string, replicas int) {
	shared, cut := 0, 0
	for i := range g.GPUs {
		switch {
		case g.GPUs[i].MIG.Enabled:
			cut++
		case b.config.Shares(&g.GPUs[i]):
			shared++
		}
	}
	switch {
	case cut == len(g.GPUs):
		return "none", 0
	case shared == 0:
		return "none", 1
	case shared < len(g.GPUs):
		return "hybrid", b.config.SGPU.SlotsPerGPU
	}
	return "sgpu", b.config.SGPU.SlotsPerGPU
}

// models counts each model on a machine with several.
func (b *builder) models(groups []model.Group) {
	if len(groups) < 2 {
		return
	}
	named := 0
	for _, g := range groups {
		named += len(g.GPUs)
		key := b.domains.GPUModelCount(wellknown.Value(g.Product))
		if _, name, ok := strings.Cut(key, "/"); ok && len(name) > wellknown.MaxLabel {
			room := wellknown.MaxLabel - (len(name) - len(wellknown.Value(g.Product)))
			key = b.domains.GPUModelCount(wellknown.Shorten(wellknown.Value(g.Product), room))
		}
		b.setInt(key, int64(len(g.GPUs)))
	}
	if lost := len(b.machine.GPUs) - named; lost > 0 {
		b.problem(b.domains.GPUKey(wellknown.GPUCount),
			strconv.Itoa(lost)+" GPUs no longer report their product and count with no model")
	}
}

// driver sets the versions of the driver and of the CUDA it supports.
func (b *builder) driver(of gpu.Labels) {
	d := b.domains
	driver := b.machine.DriverOf(b.machine.GPUs[0].Vendor)
	version := driver.Version
	b.set(d.GPUKey(wellknown.GPUDriverVersion), version)
	if !of.CUDA {
		return
	}
	b.setVendor(version, wellknown.CUDADriverVersionFull)
	parts := strings.Split(version, ".")
	switch {
	case version == "":
	case len(parts) < 2 || len(parts) > 3:
		b.problem(d.VendorKey(wellknown.CUDADriverVersionMajor),
			"driver version "+strconv.Quote(version)+" is not X.Y or X.Y.Z")
	default:
		revision := ""
		if len(parts) == 3 {
			revision = wellknown.Value(parts[2])
		}
		b.setVendor(parts[0], wellknown.CUDADriverMajor, wellknown.CUDADriverVersionMajor)
		b.setVendor(parts[1], wellknown.CUDADriverMinor, wellknown.CUDADriverVersionMinor)
		// gpu-feature-discovery writes these two empty for a version X.Y.
		b.labels[d.VendorKey(wellknown.CUDADriverRev)] = revision
		b.labels[d.VendorKey(wellknown.CUDADriverVersionRevision)] = revision
	}
	if major, minor, ok := strings.Cut(driver.CUDA, "."); ok {
		b.setVendor(major, wellknown.CUDARuntimeMajor, wellknown.CUDARuntimeVersionMajor)
		b.setVendor(minor, wellknown.CUDARuntimeMinor, wellknown.CUDARuntimeVersionMinor)
		b.setVendor(driver.CUDA, wellknown.CUDARuntimeVersionFull)
	}
}

// setVendor sets labels of the vendor's to one value.
func (b *builder) setVendor(value string, suffixes ...string) {
	for _, suffix := range suffixes {
		b.set(b.domains.VendorKey(suffix), value)
	}
}

// Clique returns the place in a multi-node NVLink fabric that all GPUs agree on
// which are registered: "<clusterUUID>.<cliqueId>". One that is not, or not yet,
// does not take the others' place away. A machine that is a fabric of its own
// reports a cluster of zeroes, and has none.
func Clique(m *machine.Machine) (place string, conflict bool) {
	for i := range m.GPUs {
		f := m.GPUs[i].Fabric
		if f == nil || f.State != machine.FabricCompleted {
			continue
		}
		if strings.Trim(f.ClusterUUID, "0-") == "" {
			return "", false
		}
		own := f.ClusterUUID + "." + strconv.FormatUint(uint64(f.CliqueID), 10)
		if place != "" && place != own {
			return "", true
		}
		place = own
	}
	return place, false
}

// fabric sets the place in a multi-node NVLink fabric.
func (b *builder) fabric() {
	place, conflict := Clique(b.machine)
	if conflict {
		b.problem(b.domains.GPUKey(wellknown.GPUClique), "the GPUs are in different cliques")
	}
	if cluster, _, ok := strings.Cut(place, "."); ok {
		b.set(b.domains.GPUKey(wellknown.GPUClique), place)
		b.set(wellknown.NVLinkDomain, cluster)
	}
}

// virtual sets whether GPUs are virtual, with the host's driver under them, and
// whether the node shares GPUs by MPS.
func (b *builder) virtual(g model.Group, of gpu.Labels) {
	d := b.domains
	virtual := func(g machine.GPU) bool { return g.VGPU != nil }
	if of.VGPU {
		b.setBool(d.VendorKey(wellknown.VGPUPresent), slices.ContainsFunc(b.machine.GPUs, virtual))
	}
	if i := slices.IndexFunc(g.GPUs, virtual); i >= 0 {
		b.setVendor(g.GPUs[i].VGPU.HostDriverVersion, wellknown.VGPUHostDriverVersion)
		b.setVendor(g.GPUs[i].VGPU.HostDriverBranch, wellknown.VGPUHostDriverBranch)
	}
	if !of.MPS {
		return
	}
	// Only where the configuration names MPS, as in gpu-feature-discovery: the
	// vendor's chart starts MPS daemons on nodes with this label.
	enforce := b.config.SGPU.Enforce
	mps := b.config.Mode == config.ModeSGPU &&
		(enforce.Memory == config.EnforceMPS || enforce.Compute == config.EnforceMPS)
	cut := slices.ContainsFunc(b.machine.GPUs, func(g machine.GPU) bool { return g.MIG.Enabled })
	b.setBool(d.VendorKey(wellknown.MPSCapable), mps && !cut)
}

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
