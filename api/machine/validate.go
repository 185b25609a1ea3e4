package machine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Validate collects what makes m useless as a machine or cannot be true: a
// wrong version, missing identities, the same identity twice, addresses in
// another spelling than sysfs', negative numbers, MIG devices on a GPU without
// MIG. A GPU or HCA without a function in PCI is valid: a scan that may
// not read sysfs finds such.
func (m *Machine) Validate() error {
	v := validator{seen: map[string]string{}}
	if m.Version != Version {
		v.addf("version", "%q is not %q", m.Version, Version)
	}
	v.numbers("", reflect.ValueOf(m).Elem())
	for i := range m.CPU.NUMA {
		v.once(fmt.Sprintf("cpu.numa[%d].id", i), "NUMA node ", fmt.Sprint(m.CPU.NUMA[i].ID))
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
		field := fmt.Sprintf("probes[%d]", i)
		v.once(field+".name", "probe ", m.Probes[i].Name)
		oneOf(&v, field+".state", m.Probes[i].State, ProbeOK, ProbeAbsent, ProbeFailed, ProbeTimeout,
			ProbeReleased)
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

// named reports an identity that is empty or stands in two places.
func (v *validator) named(field, kind, id string) {
	if id == "" {
		v.addf(field, "empty")
	}
	v.once(field, kind, id)
}

func oneOf[T ~string](v *validator, field string, value T, allowed ...T) {
	if !slices.Contains(allowed, value) {
		v.addf(field, "unsupported value %q: supported values are %q", value, allowed)
	}
}

// positive wants a number that counts from 1.
func (v *validator) positive(field string, n int) {
	if n == 0 {
		v.addf(field, "0 is less than 1")
	}
}

// numbers wants all of them to be 0 or more: what is unknown is null.
func (v *validator) numbers(field string, x reflect.Value) {
	negative := false
	switch x.Kind() { //nolint:exhaustive // The others contain no numbers.
	case reflect.Pointer:
		if !x.IsNil() {
			v.numbers(field, x.Elem())
		}
	case reflect.Struct:
		for f, value := range x.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			v.numbers(strings.TrimPrefix(field+"."+name, "."), value)
		}
	case reflect.Slice:
		for i := range x.Len() {
			v.numbers(fmt.Sprintf("%s[%d]", field, i), x.Index(i))
		}
	case reflect.Int, reflect.Int64:
		negative = x.Int() < 0
	case reflect.Float64:
		negative = x.Float() < 0
	}
	if negative {
		v.addf(field, "%v is negative; unknown is null", x)
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

func (v *validator) function(field string, f *PCIFunction) {
	v.address(field+".address", f.Address)
	v.once(field+".address", "PCI function ", f.Address)
	for j, bridge := range f.Upstream {
		v.address(fmt.Sprintf("%s.upstream[%d]", field, j), bridge)
	}
	if f.PhysFn != "" {
		v.address(field+".physFn", f.PhysFn)
	}
}

func (v *validator) gpu(field string, g *GPU) {
	v.named(field+".uuid", "GPU ", g.UUID)
	v.address(field+".pci", g.PCI)
	v.once(field+".pci", "GPU at ", g.PCI)
	switch mig := &g.MIG; {
	case mig.Enabled && !mig.Capable:
		v.addf(field+".mig", "enabled and not capable")
	case len(mig.Devices) > 0 && !mig.Enabled:
		v.addf(field+".mig", "has devices and is not enabled")
	}
	for j := range g.MIG.Devices {
		v.named(fmt.Sprintf("%s.mig.devices[%d].uuid", field, j), "MIG device ", g.MIG.Devices[j].UUID)
	}
	for j := range g.NVLinks {
		v.nvlink(fmt.Sprintf("%s.nvlinks[%d]", field, j), g.PCI, &g.NVLinks[j])
	}
	if g.Fabric != nil {
		oneOf(v, field+".fabric.state", g.Fabric.State, FabricCompleted, FabricInProgress, FabricNotStarted, FabricFailed)
	}
	oneOf(v, field+".health.state", g.Health.State, Healthy, Unhealthy, Lost)
}

func (v *validator) nvlink(field, self string, l *NVLink) {
	if l.Peer != PeerNVSwitch {
		v.address(field+".peer", l.Peer)
	}
	if l.Peer == self {
		v.addf(field+".peer", "%s is the GPU itself", l.Peer)
	}
	v.once(field+".peer", "link of "+self+" to ", l.Peer)
	v.positive(field+".links", l.Links)
}

func (v *validator) hca(field string, h *HCA) {
	v.named(field+".name", "RDMA device ", h.Name)
	for name, address := range map[string]string{".pci": h.PCI, ".physFn": h.PhysFn, ".dataDirect": h.DataDirect} {
		if address != "" {
			v.address(field+name, address)
		}
	}
	oneOf(v, field+".role", h.Role, RoleFabric, RoleStorage, RoleManagement, RoleNVSwitch, RoleVirtual)
	for j := range h.Ports {
		at := fmt.Sprintf("%s.ports[%d].number", field, j)
		v.positive(at, h.Ports[j].Number)
		v.once(at, field+" port ", fmt.Sprint(h.Ports[j].Number))
	}
}
