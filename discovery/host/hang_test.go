package host

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// patience is how long readers of these tests may take: the sound ones need
// milliseconds, also on a busy machine, and each hanging one costs it once.
const patience = time.Second

func impatient(tree *sysfstest.Tree) *Host {
	return New(Options{
		SysfsRoot: tree.Sys(), DevRoot: tree.Dev(), ProcRoot: tree.Proc(), NodeName: "dgx042", GPUs: from(&gpus{count: 8}),
		Timeout: patience,
	})
}

// A hanging attribute costs its timeout once, changes no value, and is reported until
// it answers.
func TestHangingAttribute(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, attribute, text string
		// probe is the reader's, or "" if the skip is all there is.
		probe, reason string
		skipped       []machine.Skipped
	}{
		{
			name: "a port of mlx5_3", attribute: "sys/class/infiniband/mlx5_3/ports/1/state", text: "4: ACTIVE",
			probe: "rdma", reason: "mlx5_3 did not answer in 1s",
			skipped: []machine.Skipped{{Name: "mlx5_3", Reason: "did not answer in 1s; its values are the last good ones"}},
		},
		{
			name: "the RDMA class", attribute: "sys/class/infiniband_verbs/uverbs0/ibdev", text: "mlx5_0",
			probe: "rdma", reason: "did not answer in 1s",
		},
		{
			name: "a PCI function", attribute: "sys/bus/pci/devices/0000:13:00.0/current_link_speed", text: "32.0 GT/s PCIe",
			probe: "sysfs", reason: "did not answer in 1s",
		},
		{
			name: "a NUMA node", attribute: "sys/devices/system/node/node0/cpulist", text: "0-55,112-167",
			probe: "cpu", reason: "did not answer in 1s",
		},
		{
			name: "vital product data", attribute: "sys/bus/pci/devices/0000:14:00.0/vpd", text: "x",
			skipped: []machine.Skipped{{Name: "vpd", Reason: "vital product data: did not answer in 1s"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tree := sysfstest.New(t)
			sysfstest.DGXH100(tree)
			h := impatient(tree)
			sound := h.Scan(t.Context())
			release := tree.Hang(tt.attribute)
			want := *sound
			want.Skipped, want.Probes = tt.skipped, slices.Clone(sound.Probes)
			for i := range want.Probes {
				if p := &want.Probes[i]; p.Name == tt.probe {
					p.State, p.Reason = machine.ProbeTimeout, tt.reason
				}
			}
			for range 2 {
				if diff := cmp.Diff(&want, h.Scan(t.Context())); diff != "" {
					t.Errorf("while it hangs (-want +got):\n%s", diff)
				}
			}
			release(tt.text)
			for began := time.Now(); ; {
				m := h.Scan(t.Context())
				if cmp.Equal(sound.Probes, m.Probes) && cmp.Equal(sound.HCAs, m.HCAs) {
					break
				}
				if time.Since(began) > time.Minute {
					t.Fatalf("it answers again, and %v, skipped %v", m.Probes, m.Skipped)
				}
			}
		})
	}
}

// A device that hangs when the daemon starts is left out, and no other is.
func TestHangingFromTheStart(t *testing.T) {
	t.Parallel()
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	defer tree.Hang("sys/class/infiniband/mlx5_3/ports/1/rate")("")
	m := impatient(tree).Scan(t.Context())
	want := roles(0, 8, "mlx5_8")
	delete(want, "mlx5_3")
	if diff := cmp.Diff(want, rolesOf(m)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]machine.Skipped{{Name: "mlx5_3", Reason: "did not answer in 1s"}}, m.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}
