package machine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHCAIDs(t *testing.T) {
	m := &Machine{HCAs: []HCA{
		{Name: "mlx5_0", PCI: "0000:18:00.0", NodeGUID: "946d:ae03:0012:0000"},
		{Name: "smi1", PCI: "0000:18:00.0"},
		{Name: "rxe0", NodeGUID: "0255:acff:fe11:0003"},
		{Name: "siw0", NodeGUID: "0000:0000:0000:0000"},
	}}
	want := []string{"0000:18:00.0", "0000:18:00.0/smi1", "0255:acff:fe11:0003", "siw0"}
	if diff := cmp.Diff(want, m.HCAIDs()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParentGPU(t *testing.T) {
	m := &Machine{GPUs: []GPU{
		{UUID: "GPU-a"},
		{UUID: "GPU-b", MIG: MIG{Devices: []MIGDevice{{UUID: "MIG-1"}, {UUID: "MIG-2"}}}},
	}}
	for uuid, want := range map[string]string{"MIG-2": "GPU-b", "GPU-b": "", "MIG-3": ""} {
		if got := m.ParentGPU(uuid); got != want {
			t.Errorf("%s: got %q, want %q", uuid, got, want)
		}
	}
	if got := (*Machine)(nil).ParentGPU("MIG-1"); got != "" {
		t.Errorf("no machine: got %q", got)
	}
}
