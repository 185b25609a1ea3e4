package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// hca is the state of one HCA.
type hca struct {
	present bool
	// transient is a device that may go without a fault: a virtual function, or
	// soft RDMA.
	transient bool
	pci       string
	// fault is the fault that the last scan found.
	fault fault
	// best is the highest rate that a port had while it was active.
	best map[int]float64
	// badSince is since when it has a fault, with good times that were too
	// short; goodSince since when it has none. One may be zero.
	badSince, goodSince time.Time
	state               State
}

type fault struct {
	cause  Cause
	reason string
}

// like holds what ports must have in common to be compared.
type like struct{ vendor, device, layer string }

// usualRates returns the rates, in 10^9 bits a second, that more than half of at
// least two active ports of a kind have. Half of the ports or fewer are no
// measure for the others.
func usualRates(m *machine.Machine) map[like]float64 {
	rates := map[like]map[float64]int{}
	ports := map[like]int{}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		for j := range h.Ports {
			p := &h.Ports[j]
			if p.State != machine.PortActive || p.RateGbps == nil {
				continue
			}
			kind := like{h.Vendor, h.Device, p.LinkLayer}
			if rates[kind] == nil {
				rates[kind] = map[float64]int{}
			}
			rates[kind][*p.RateGbps]++
			ports[kind]++
		}
	}
	usual := map[like]float64{}
	for kind, counts := range rates {
		for rate, n := range counts {
			if n > 1 && 2*n > ports[kind] {
				usual[kind] = rate
			}
		}
	}
	return usual
}

// see takes a scan. An HCA is as good as its best port: a second port without
// a cable is not a fault.
func (s *hca) see(m *machine.Machine, h *machine.HCA, usual map[like]float64, checks *config.Health) {
	s.present, s.pci, s.state.Name = true, h.PCI, h.Name
	if h.PCI != "" {
		s.state.Name += " (" + h.PCI + ")"
	}
	s.transient = h.PhysFn != "" || h.Virtual
	if s.best == nil {
		s.best = map[int]float64{}
	}
	s.fault = fault{PortDown, "no port could be read"}
	pf := activePF(m, h)
	var reasons []string
	for i := range h.Ports {
		p := &h.Ports[i]
		f := s.port(p, usual[like{h.Vendor, h.Device, p.LinkLayer}], checks.Checks(config.CheckRate))
		if pf != nil && (f.cause == PortDown || f.cause == NoSubnetManager) {
			f = unused(p, pf)
		}
		reasons = append(reasons, f.reason)
		if i == 0 || severity(f.cause) < severity(s.fault.cause) {
			s.fault = f
		}
	}
	if s.fault.cause != "" && len(reasons) > 0 {
		s.fault.reason = strings.Join(slices.DeleteFunc(reasons, func(r string) bool { return r == "" }), "; ")
	}
	if h.Elsewhere || !checks.Checks(config.CheckHCAs) { // Ports elsewhere are not seen.
		s.fault = fault{}
	}
}

func severity(c Cause) int {
	return slices.Index([]Cause{"", RateDegraded, NoSubnetManager, Idle, PortDown}, c)
}

// activePF returns the physical function of a virtual one if it has an active port, else nil.
func activePF(m *machine.Machine, h *machine.HCA) *machine.HCA {
	for i := range m.HCAs {
		pf := &m.HCAs[i]
		if h.PhysFn != "" && pf.PCI == h.PhysFn &&
			slices.ContainsFunc(pf.Ports, func(p machine.Port) bool { return p.State == machine.PortActive }) {
			return pf
		}
	}
	return nil
}

// unused returns the fault of a virtual function's port beside the active port of its physical function: neither the
// cable nor the subnet manager is at fault.
func unused(p *machine.Port, pf *machine.HCA) fault {
	if p.State == machine.PortDown {
		return fault{Idle, fmt.Sprintf("port %d is DOWN (%s): no container has set up this virtual function of %s",
			p.Number, cmp.Or(p.PhysState, "unknown"), pf.Name)}
	}
	return fault{PortDown, fmt.Sprintf("port %d is %s, and its physical function %s is ACTIVE: "+
		"the virtual function has no GUID, or its link state is not set", p.Number, p.State, pf.Name)}
}

// port finds what is wrong with a port. Its measure is the usual rate of its
// like, so that a fabric that is set to another rate needs no restart here;
// without one (0) it is the best that the port had.
func (s *hca) port(p *machine.Port, usual float64, rate bool) fault {
	name := fmt.Sprintf("port %d", p.Number)
	infiniBand := p.LinkLayer == machine.InfiniBand
	switch {
	case infiniBand && (p.State == machine.PortInit || p.State == machine.PortArmed):
		return fault{NoSubnetManager, fmt.Sprintf("%s is %s: no subnet manager has brought it up", name, p.State)}
	case p.State != machine.PortActive:
		return fault{PortDown, fmt.Sprintf("%s is %s (%s)", name, cmp.Or(p.State, "unknown"), cmp.Or(p.PhysState, "unknown"))}
	case infiniBand && p.SMLID == 0:
		return fault{NoSubnetManager, name + " is ACTIVE, but no subnet manager is known (SM LID 0)"}
	case p.RateGbps == nil:
		return fault{}
	}
	best := max(s.best[p.Number], *p.RateGbps)
	s.best[p.Number] = best
	switch {
	case !rate:
	case usual > 0 && *p.RateGbps < usual:
		return fault{RateDegraded, fmt.Sprintf("%s runs at %s, where ports like it have %g Gb/s", name, p.Rate, usual)}
	case usual == 0 && *p.RateGbps < best:
		return fault{RateDegraded, fmt.Sprintf("%s runs at %s, where it had %g Gb/s", name, p.Rate, best)}
	}
	return fault{}
}

// update renews the state and returns when it may change without an event; zero is
// never.
func (s *hca) update(now time.Time, h *config.Health) time.Time {
	f, down := s.fault, h.DownAfter
	if !s.present {
		f = fault{Gone, "its RDMA device is not on the node any more"}
	}
	first := s.state.Since.IsZero()
	if f.cause != "" {
		s.goodSince = time.Time{}
		if s.badSince.IsZero() {
			s.badSince = now
		}
		if due := s.badSince.Add(down); s.state.Healthy && !first && now.Before(due) {
			return due
		}
		s.state.set(now, f.cause, f.reason)
		return time.Time{}
	}
	if s.goodSince.IsZero() {
		s.goodSince = now
	}
	after := h.UpAfter
	switch {
	case first:
		after = 0
	case s.state.Healthy && s.badSince.IsZero():
		return time.Time{}
	case s.state.Healthy:
		// A flapping link is good for less than this, and then counts as bad
		// since its first fault.
		after = down
	}
	if due := s.goodSince.Add(after); now.Before(due) {
		return due
	}
	s.badSince = time.Time{}
	s.state.set(now, "", "")
	return time.Time{}
}
