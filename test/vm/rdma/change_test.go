//go:build vmguest && linux

package rdma_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/vm/guest"
)

// hca1 finds the HCA on eth1 by its node GUID, which is its identity, or
// returns nil.
func hca1(m *machine.Machine) *machine.HCA {
	for i := range m.HCAs {
		if m.HCAs[i].NodeGUID == "5054:00ff:fe00:0001" {
			return &m.HCAs[i]
		}
	}
	return nil
}

func TestHotPlug(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1", "eth2")
	h := guest.Watch(t)
	guest.RemoveRDMA(t, "rxe1")
	took := guest.Await(t, h, "rxe1 is gone", func(m *machine.Machine) bool { return hca1(m) == nil })
	t.Log("gone after", took)
	if _, err := os.Stat("/dev/infiniband/uverbs1"); err == nil {
		t.Error("the device node outlived its device")
	}
	want := []machine.HCA{rxe("rxe0", "0"), rxe("rxe2", "2")}
	if diff := cmp.Diff(want, h.Machine().HCAs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the others changed (-want +got):\n%s", diff)
	}
	guest.AddRXE(t, "rxe1", "eth1")
	took = guest.Await(t, h, "rxe1 is back", func(m *machine.Machine) bool {
		return cmp.Diff([]machine.HCA{rxe("rxe0", "0"), rxe("rxe1", "1"), rxe("rxe2", "2")}, m.HCAs,
			cmpopts.EquateEmpty()) == ""
	})
	t.Log("back after", took)
}

// udev renames devices at will: rdma-core's rules make rocep3s0 of mlx5_1.
func TestRenamedDeviceIsTheSame(t *testing.T) {
	guest.SoftRDMA(t, "eth0", "eth1", "eth2")
	h := guest.Watch(t)
	guest.RenameRDMA(t, "rxe1", "mlx5_1")
	took := guest.Await(t, h, "mlx5_1 is there", func(m *machine.Machine) bool {
		found := hca1(m)
		return found != nil && found.Name == "mlx5_1"
	})
	t.Log("renamed after", took)
	want := []machine.HCA{rxe("mlx5_1", "1"), rxe("rxe0", "0"), rxe("rxe2", "2")}
	if diff := cmp.Diff(want, h.Machine().HCAs, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("HCAs (-want +got):\n%s", diff)
	}
}
