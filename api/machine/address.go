package machine

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

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
		return Address{}, fmt.Errorf("invalid PCI address %q: want one such as 0000:18:00.0", s)
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
	if a.Device > 0x1f || a.Function > 7 {
		return bad()
	}
	return a, nil
}

// String returns the address as sysfs writes it.
func (a Address) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", a.Domain, a.Bus, a.Device, a.Function)
}

// Compare orders by domain, bus, device and function.
func (a Address) Compare(b Address) int {
	return cmp.Or(
		cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function),
	)
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
