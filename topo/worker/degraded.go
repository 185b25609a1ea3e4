package worker

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/nvswitch"
	"github.com/heddle-dev/heddle/topo/links"
)

// followLinks adds the newest reading of counters to the earlier ones, and returns the degraded links. A worker that
// starts goes on with the published ones.
func (w *Worker) followLinks(in *input) []v1alpha1.DegradedLink {
	if w.links == nil {
		w.links = links.New(in.before.DegradedLinks)
		for i := range in.before.DegradedLinks {
			if d := &in.before.DegradedLinks[i]; d.What == links.FatalSXid {
				w.Switches.Resume(nvswitch.Link{Switch: d.ID, Name: d.Link}, d.Value, d.Since.Time)
			}
		}
	}
	if now := in.counters; !now.Time.Equal(w.scan.Time) {
		w.far = in.farCounters()
		in.far = w.far
		readings := in.readings()
		for uuid, all := range w.LinkCounters.Take() {
			for link, e := range all {
				readings = append(readings, links.Reading{End: links.End{ID: uuid, Link: link}, Errors: e})
			}
		}
		for of, e := range w.Switches.Read() {
			readings = append(readings, links.Reading{End: links.End{ID: of.Switch, Link: of.Name}, Switch: &e})
		}
		w.links.Add(now.Time, readings)
		w.Metrics.congestion(w.scan, now)
		w.scan = now
	}
	in.far = w.far
	found := w.links.Findings()
	w.Metrics.degradedLinks(found)
	return found
}

// farCounters are the counters of switches' ports in the answers of this pass.
func (in *input) farCounters() map[PortKey]*v1alpha1.Counters {
	far := map[PortKey]*v1alpha1.Counters{}
	for i := range in.answers {
		for _, l := range in.answers[i].Links {
			if l.Counters != nil {
				far[l.PortKey] = l.Counters
			}
		}
	}
	return far
}

// readings are of the ports with counters, of the switches' ports behind them, and of the PCIe links of HCAs and GPUs.
func (in *input) readings() (all []links.Reading) {
	devices := map[string]links.Reading{}
	for i := range in.ports {
		r := &in.ports[i].Rail
		one := links.Reading{
			End:    links.End{HCA: r.HCA, ID: r.ID, Port: r.Port, Netdev: r.Netdev},
			Active: r.LinkState == v1alpha1.LinkActive, RateGbps: r.RateGbps,
		}
		device := devices[r.ID]
		if c, ok := in.counters.Ports[portID(r)]; ok {
			one.Errors, device.Bytes = links.PortErrors(&c.Counters), device.Bytes+c.Bytes
			all = append(all, one)
		}
		// Behind a link that is down, no switch can be asked: that tells nothing.
		if far := in.far[keyOf(r)]; far != nil || r.LinkLayer == machine.InfiniBand && !one.Active {
			one.Side, one.Errors = v1alpha1.SwitchEnd, links.PortErrors(far)
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
	if r.LinkLayer != machine.InfiniBand {
		return
	}
	name := fmt.Sprintf("%s port %d", r.HCA, r.Port)
	note := func(name string, c *v1alpha1.Counters) {
		if names := links.Full(c); len(names) > 0 {
			skip(name, strings.Join(names, ", ")+": the counter has stopped at its highest value; perfquery -R clears it")
		}
	}
	if c, ok := in.counters.Ports[portID(r)]; ok {
		note(name, &c.Counters)
	}
	if far := in.far[keyOf(r)]; far != nil {
		note("switch of "+name, far)
	}
}
