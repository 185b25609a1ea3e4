package machine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Validate collects what makes m useless as a machine: a wrong version,
// missing identities, the same identity twice, addresses that do not parse.
func (m *Machine) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Version != Version {
		bad("version: %q is not %q", m.Version, Version)
	}
	seen := map[string]string{}
	once := func(field, id string) {
		if other, ok := seen[id]; ok {
			bad("%s: %s is also %s", field, id, other)
		}
		seen[id] = field
	}
	for i := range m.PCI {
		field := fmt.Sprintf("pci[%d].address", i)
		if _, err := ParseAddress(m.PCI[i].Address); err != nil {
			bad("%s: %w", field, err)
		}
		once(field, m.PCI[i].Address)
	}
	for i := range m.GPUs {
		errs = append(errs, m.GPUs[i].validate(fmt.Sprintf("gpus[%d]", i))...)
		once(fmt.Sprintf("gpus[%d].uuid", i), m.GPUs[i].UUID)
	}
	for i := range m.HCAs {
		errs = append(errs, m.HCAs[i].validate(fmt.Sprintf("hcas[%d]", i))...)
		once(fmt.Sprintf("hcas[%d].name", i), "RDMA device "+m.HCAs[i].Name)
	}
	return errors.Join(errs...)
}

func (g *GPU) validate(field string) (errs []error) {
	if g.UUID == "" {
		errs = append(errs, fmt.Errorf("%s.uuid: empty", field))
	}
	if _, err := ParseAddress(g.PCI); err != nil {
		errs = append(errs, fmt.Errorf("%s.pci: %w", field, err))
	}
	if g.MemoryMiB < 0 {
		errs = append(errs, fmt.Errorf("%s.memoryMiB: %d is negative", field, g.MemoryMiB))
	}
	switch g.Health.State {
	case Healthy, Unhealthy, Lost:
	default:
		errs = append(errs, fmt.Errorf("%s.health.state: %q is not healthy, unhealthy or lost", field, g.Health.State))
	}
	return errs
}

func (h *HCA) validate(field string) (errs []error) {
	if h.Name == "" {
		errs = append(errs, fmt.Errorf("%s.name: empty", field))
	}
	if h.PCI != "" {
		if _, err := ParseAddress(h.PCI); err != nil {
			errs = append(errs, fmt.Errorf("%s.pci: %w", field, err))
		}
	}
	switch h.Role {
	case RoleFabric, RoleStorage, RoleManagement, RoleNVSwitch, RoleVirtual:
	default:
		errs = append(errs, fmt.Errorf("%s.role: %q is no role", field, h.Role))
	}
	return errs
}

// Address is a parsed PCI address. Its fields are in the order that sorts
// functions as the bus does: mlx5 names and address strings of unequal domain
// width do not.
type Address struct {
	Domain, Bus, Device, Function uint64
}

// ParseAddress reads domain:bus:device.function in hexadecimal. Domains may
// have more than four digits: VMD and Azure have them.
func ParseAddress(s string) (Address, error) {
	bad := func() (Address, error) {
		return Address{}, fmt.Errorf("%q is no PCI address, such as 0000:18:00.0", s)
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return bad()
	}
	dev, fn, ok := strings.Cut(parts[2], ".")
	if !ok || len(parts[0]) < 4 || len(parts[0]) > 8 || len(parts[1]) != 2 || len(dev) != 2 || len(fn) != 1 {
		return bad()
	}
	var a Address
	for _, f := range []struct {
		to   *uint64
		text string
	}{{&a.Domain, parts[0]}, {&a.Bus, parts[1]}, {&a.Device, dev}, {&a.Function, fn}} {
		n, err := strconv.ParseUint(f.text, 16, 32)
		if err != nil {
			return bad()
		}
		*f.to = n
	}
	return a, nil
}

// ComparePCI orders two addresses numerically; what does not parse comes
// last, by its text.
func ComparePCI(a, b string) int {
	x, errX := ParseAddress(a)
	y, errY := ParseAddress(b)
	switch {
	case errX != nil && errY != nil:
		return strings.Compare(a, b)
	case errX != nil:
		return 1
	case errY != nil:
		return -1
	}
	return x.Compare(y)
}
