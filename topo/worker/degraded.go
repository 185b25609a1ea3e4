package worker

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/links"
)

// followLinks adds the newest reading of counters to the earlier ones, and returns the degraded links. A worker that
// starts goes on with the published ones.
func (w *Worker) followLinks(in *input) []v1alpha1.DegradedLink {
	if w.links == nil {
		w.links = links.New(in.before.DegradedLinks)
	}
	if now := in.counters; now != nil && now != w.scan {
		w.links.Add(now.Time, in.readings())
		w.Metrics.congestion(w.scan, now)
		w.scan = now
	}
	found := w.links.Findings()
	w.Metrics.degradedLinks(found)
	return found
}

// readings are of the ports with counters, and of the PCIe links of HCAs and GPUs.
func (in *input) readings() (all []links.Reading) {
	devices := map[string]links.Reading{}
	for i := range in.ports {
		r := &in.ports[i].Rail
		one := links.Reading{
			End:    links.End{HCA: r.HCA, ID: r.ID, Port: r.Port, Netdev: r.Netdev},
			Active: r.LinkState == v1alpha1.LinkActive, RateGbps: r.RateGbps,
		}
		device := devices[r.ID]
		if c, ok := in.counters.Of(portID(r)); ok {
			one.Counters, device.Bytes = &c.Counters, device.Bytes+c.Bytes
			all = append(all, one)
		}
		device.End, device.RateGbps = links.End{HCA: r.HCA, ID: r.ID}, max(device.RateGbps, r.RateGbps)
		devices[r.ID] = device
	}
	for i := range in.machine.GPUs {
		g := &in.machine.GPUs[i]
		devices[g.PCI] = links.Reading{End: links.End{ID: g.UUID}}
	}
	for i := range in.machine.PCI {
		f := &in.machine.PCI[i]
		if device, ok := devices[f.Address]; ok && f.MaxLinkWidth > 0 {
			device.PCIe = links.PCIe{
				Speed: machine.SpeedGTs(f.LinkSpeed), MaxSpeed: machine.SpeedGTs(f.MaxLinkSpeed),
				Width: f.LinkWidth, MaxWidth: f.MaxLinkWidth,
			}
			all = append(all, device)
		}
	}
	return all
}

// degradedLinks returns the list to report: that which was reported while it has the same links, unless its values are
// old enough.
func (in *input) degradedLinks() []v1alpha1.DegradedLink {
	before := in.before.DegradedLinks
	fresh := func(d v1alpha1.DegradedLink) bool {
		age := in.now.Sub(d.Time.Time)
		return age >= 0 && age < countedEvery
	}
	if links.Same(before, in.degraded) && slices.ContainsFunc(before, fresh) {
		return before
	}
	return in.degraded
}

// full notes counters that have stopped.
func (in *input) full(r *v1alpha1.Rail, skip func(name, reason string)) {
	c, ok := in.counters.Of(portID(r))
	if names := links.Full(&c.Counters); ok && r.LinkLayer == machine.InfiniBand && len(names) > 0 {
		skip(fmt.Sprintf("%s port %d", r.HCA, r.Port), strings.Join(names, ", ")+
			": the counter has stopped at its highest value; perfquery -R clears it")
	}
}
