package machine

import (
	"errors"
	"fmt"
)

// Validate collects what makes m useless as a machine or cannot be true: a
// wrong version, missing identities, the same identity twice, addresses in
// another spelling than sysfs', negative sizes, MIG devices on a GPU without
// MIG. A GPU or HCA whose function is not in PCI is no fault: a scan that may
// not read sysfs finds such.
func (m *Machine) Validate() error {
	v := validator{seen: map[string]string{}}
	if m.Version != Version {
		v.addf("version", "%q is not %q", m.Version, Version)
	}
	v.atLeast("cpu.sockets", m.CPU.Sockets, 0)
	for i := range m.CPU.NUMA {
		v.numaNode(fmt.Sprintf("cpu.numa[%d]", i), &m.CPU.NUMA[i])
	}
	for i := range m.PCI {
		v.function(fmt.Sprintf("pci[%d]", i), &m.PCI[i])
	}
	for i := range m.GPUs {
		v.gpu(fmt.Sprintf("gpus[%d]", i), &m.GPUs[i])
	}
	for i := range m.HCAs {
		v.hca(fmt.Sprintf("hcas[%d]", i), &m.HCAs[i])
	}
	for i := range m.Probes {
		v.probe(fmt.Sprintf("probes[%d]", i), &m.Probes[i])
	}
	return errors.Join(v.errs...)
}

// validator collects faults; seen are the identities so far, by kind and text,
// with their places.
type validator struct {
	errs []error
	seen map[string]string
}

func (v *validator) addf(field, format string, args ...any) {
	v.errs = append(v.errs, fmt.Errorf("%s: %w", field, fmt.Errorf(format, args...)))
}

// once reports an identity that stands in two places.
func (v *validator) once(field, kind, id string) {
	if other, ok := v.seen[kind+id]; ok {
		v.addf(field, "%s is also %s", id, other)
		return
	}
	v.seen[kind+id] = field
}

func (v *validator) atLeast(field string, n, least int) {
	if n < least {
		v.addf(field, "%d is less than %d", n, least)
	}
}

// known reports a NUMA node or a minor number that is not null and negative.
func (v *validator) known(field string, n *int) {
	if n != nil && *n < 0 {
		v.addf(field, "%d is negative; unknown is null", *n)
	}
}

// address wants sysfs' spelling: functions are joined by their text.
func (v *validator) address(field, s string) {
	switch a, err := ParseAddress(s); {
	case err != nil:
		v.addf(field, "%w", err)
	case a.String() != s:
		v.addf(field, "%q is not as sysfs writes it: %s", s, a)
	}
}

func (v *validator) numaNode(field string, n *NUMANode) {
	v.atLeast(field+".id", n.ID, 0)
	v.once(field+".id", "NUMA node ", fmt.Sprint(n.ID))
	for j, distance := range n.Distances {
		v.atLeast(fmt.Sprintf("%s.distances[%d]", field, j), distance, 0)
	}
}

func (v *validator) function(field string, f *PCIFunction) {
	v.address(field+".address", f.Address)
	v.once(field+".address", "PCI function ", f.Address)
	v.known(field+".numa", f.NUMA)
	v.atLeast(field+".linkWidth", f.LinkWidth, 0)
	for j, bridge := range f.Upstream {
		v.address(fmt.Sprintf("%s.upstream[%d]", field, j), bridge)
	}
	if f.PhysFn != "" {
		v.address(field+".physFn", f.PhysFn)
	}
}

func (v *validator) hca(field string, h *HCA) {
	if h.Name == "" {
		v.addf(field+".name", "empty")
	}
	v.once(field+".name", "RDMA device ", h.Name)
	for _, address := range []struct{ field, text string }{
		{".pci", h.PCI}, {".physFn", h.PhysFn}, {".dataDirect", h.DataDirect},
	} {
		if address.text != "" {
			v.address(field+address.field, address.text)
		}
	}
	switch h.Role {
	case RoleFabric, RoleStorage, RoleManagement, RoleNVSwitch, RoleVirtual:
	default:
		v.addf(field+".role", "%q is no role", h.Role)
	}
	for j := range h.Ports {
		p := &h.Ports[j]
		at := fmt.Sprintf("%s.ports[%d]", field, j)
		v.atLeast(at+".number", p.Number, 1)
		v.once(at+".number", field+" port ", fmt.Sprint(p.Number))
		if p.RateGbps != nil && *p.RateGbps < 0 {
			v.addf(at+".rateGbps", "%g is negative", *p.RateGbps)
		}
		v.atLeast(at+".lid", p.LID, 0)
		v.atLeast(at+".smLID", p.SMLID, 0)
	}
}

func (v *validator) probe(field string, p *Probe) {
	v.once(field+".name", "probe ", p.Name)
	switch p.State {
	case ProbeOK, ProbeAbsent, ProbeFailed, ProbeTimeout:
	default:
		v.addf(field+".state", "%q is not ok, absent, failed or timeout", p.State)
	}
}
