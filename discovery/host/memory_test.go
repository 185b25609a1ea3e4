package host

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

// Roles stay while links flap and devices are lost; they change with a device
// that comes and with a link that comes up for the first time.
func TestRolesStay(t *testing.T) {
	const ib = machine.InfiniBand
	build := func() machine.Machine { // A virtual machine: only speed decides.
		m := all(numbered("mlx5_%d", 0, 3, "0x101e", ib, 400), numbered("mlx5_%d", 4, 4, "0x1018", ib, 200))
		for i := range m.HCAs {
			m.HCAs[i].PCI = fmt.Sprintf("000%d:00:00.0", i)
		}
		return m
	}
	var k memory
	check := func(what string, m machine.Machine, want ...string) {
		t.Helper()
		k.assign(&m, nil, Vendors())
		if diff := cmp.Diff(want, fabricNames(t, &m)); diff != "" {
			t.Errorf("%s: fabric (-want +got):\n%s", what, diff)
		}
	}
	rails := railNames("mlx5_%d", 4)
	m := build()
	for i := range 4 {
		m.HCAs[i] = down(m.HCAs[i])
	}
	check("started while the rails are down", m, "mlx5_4")
	check("their links came up", build(), rails...)
	check("they went down again", m, rails...)
	lost := build()
	lost.HCAs = lost.HCAs[4:]
	check("the rails fell off the bus", lost)
	check("and came back", m, rails...)
	added := build()
	added.HCAs = append(added.HCAs, hca("mlx5_9", "0x1023", ib, 800))
	check("a faster one was added", added, "mlx5_9")
}
