package kfd_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

// What is bad about one file is named, costs that part of that GPU alone, and
// nothing that was known is lost.
func TestBadInput(t *testing.T) {
	properties := nodes + "1/properties"
	for _, tt := range []struct {
		name   string
		change func(r *rig)
		// skipped is in some reason, health that of the first GPU.
		skipped, health string
	}{
		{"no unique_id", func(r *rig) { r.replace(properties, "unique_id 161", "unique_id 0") }, "", ""},
		{
			"properties cut off", func(r *rig) { r.Write(properties, "simd_count 1216\nvendor_id 4098\ndev") },
			`property device_id is missing`, "lost",
		},
		{"no properties", func(r *rig) { r.Write(properties, "") }, "property simd_count is missing", "lost"},
		{"a property of another form", func(r *rig) { r.replace(properties, "unique_id", "name gfx942 and more\nflags -1\nunique_id") }, "", ""},
		{"a number too large", func(r *rig) { r.replace(properties, "drm_render_minor 128", "drm_render_minor 99999999999999999999") }, "drm_render_minor is missing or not a number", "lost"},
		{"a link cut off", func(r *rig) { r.Write(nodes+"1/io_links/1/properties", "type 11\nnode_to 2\n") }, "links: ", ""},
		{"a link to nowhere", func(r *rig) { r.replace(nodes+"1/io_links/1/properties", "node_to 2", "node_to 18446744073709551615") }, "", ""},
		{"memory is not a number", func(r *rig) { r.Write(r.pci("mem_info_vram_total"), "lots") }, "memory: parse", ""},
		{
			"the mode is being changed", func(r *rig) { r.Write(r.pci("current_compute_partition"), "CPX") },
			"the partition mode is being changed: it is CPX, and the topology has 1 nodes of the GPU", "",
		},
		{"the GPU is being reset", func(r *rig) { r.Write(r.pci("current_compute_partition"), "UNKNOWN") }, `is "UNKNOWN"`, ""},
		{"a mode of another tongue", func(r *rig) { r.Write(r.pci("current_memory_partition"), "../../x") }, `is "../../x"`, ""},
		{"an invalid RAS counter", func(r *rig) { r.Write(r.pci("ras/umc_err_count"), "?") }, `RAS block umc: no "ue" in "?"`, ""},
		{
			"uncorrectable errors", func(r *rig) { r.Write(r.pci("ras/umc_err_count"), "ue: 2\nce: 9") },
			"", "unhealthy: RAS counts 2 uncorrectable errors of umc",
		},
		{
			"uncorrectable errors after a block that counts nothing", func(r *rig) {
				r.Remove(r.pci("ras/gfx_err_count"))
				r.Link(r.pci("ras/gfx_err_count"), "nothing") // Listed, and absent when it is read.
				r.Write(r.pci("ras/umc_err_count"), "ue: 2\nce: 9")
			},
			"", "unhealthy: RAS counts 2 uncorrectable errors of umc",
		},
		{
			"the firmware hangs", func(r *rig) { r.Write(r.pci("gpu_metrics"), "\xff\xff\xff\xff\xff") },
			"", "unhealthy: its management firmware does not answer",
		},
		{"a table of metrics", func(r *rig) { r.Write(r.pci("gpu_metrics"), "\x05\x00\x01\x03\x2a") }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			before := r.host.Scan(t.Context())
			tt.change(r)
			m := r.host.Scan(t.Context())
			if len(m.GPUs) != 2 || m.GPUs[0].PCI != first || m.GPUs[0].MemoryMiB != before.GPUs[0].MemoryMiB {
				t.Fatalf("GPUs %+v", m.GPUs)
			}
			if got := m.GPUs[0].Health.String(); !strings.HasPrefix(got, tt.health) || tt.health == "" && got != "" {
				t.Errorf("health %q, want %q", got, tt.health)
			}
			if got := m.GPUs[1].Health.State; got != machine.Healthy {
				t.Errorf("the other GPU is %s", got)
			}
			named := slices.ContainsFunc(append(m.Skipped, machine.Skipped{Reason: m.GPUs[0].Health.Reason}), func(s machine.Skipped) bool {
				return strings.Contains(s.Reason, tt.skipped)
			})
			if !named {
				t.Errorf("%q is not named: skipped %v, probes %v", tt.skipped, m.Skipped, m.Probes)
			}
			if err := m.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Errors that were counted stand while a counter cannot be read, and until a reset clears
// it. Hanging firmware takes precedence as the reason: it must not be ignored.
func TestCountedErrors(t *testing.T) {
	r := newRig(t)
	counter := r.pci("ras/umc_err_count")
	steps := []struct {
		do         func()
		want, when string
	}{
		{func() { r.Write(counter, "ue: 2\nce: 9") }, "UncorrectableErrors", "counted"},
		{func() { r.Write(counter, "?") }, "UncorrectableErrors", "the counter is unreadable"},
		{func() { r.Write(counter, "ue: 2\nce: 9"); r.Write(r.pci("gpu_metrics"), "\xff\xff\xff\xff\xff") }, "", "the firmware hangs too"},
		{func() { r.Write(counter, "ue: 0\nce: 0"); r.Write(r.pci("gpu_metrics"), "\x05\x00\x01\x03\x2a") }, "healthy", "after a reset"},
	}
	for _, s := range steps {
		s.do()
		h := r.host.Scan(t.Context()).GPUs[0].Health
		got := h.Cause
		if h.State == machine.Healthy {
			got = "healthy"
		}
		if got != s.want {
			t.Errorf("%s: %+v, want %q", s.when, h, s.want)
		}
	}
}

// A GPU without an ID of its own, and two with one ID, are known by their place.
func TestIdentityByPlace(t *testing.T) {
	r := newRig(t)
	r.replace(nodes+"1/properties", "unique_id 161", "unique_id 0")
	if got := r.host.Scan(t.Context()).GPUs[0].UUID; got != "GPU-0000-05-00-0" {
		t.Errorf("without unique_id: %s", got)
	}
	r.replace(nodes+"1/properties", "unique_id 0", "unique_id 162")
	m := r.host.Scan(t.Context())
	if err := m.Validate(); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(m.GPUs[0].UUID, " ", m.GPUs[1].UUID); got != "GPU-00000000000000a2 GPU-0000-27-00-0" {
		t.Errorf("two with one ID: %s", got)
	}
}

// A mode that changes between two scans keeps the partitions that were known until
// the topology has those of the new mode. A GPU with an unknown mode at the
// start is not allocated.
func TestModeChanges(t *testing.T) {
	r := newRig(t)
	r.cut("CPX", 8)
	if n := len(r.host.Scan(t.Context()).GPUs[0].MIG.Devices); n != 8 {
		t.Fatalf("%d partitions", n)
	}
	r.Write(r.pci("current_compute_partition"), "DPX")
	m := r.host.Scan(t.Context())
	if n := len(m.GPUs[0].MIG.Devices); n != 8 || len(m.Skipped) != 1 || m.GPUs[0].Health.State != machine.Healthy {
		t.Errorf("while it changes: %d partitions, %s, skipped %v", n, m.GPUs[0].Health, m.Skipped)
	}
	for p := 2; p < 8; p++ {
		r.Remove(fmt.Sprintf(nodes+"%d", 9+p))
	}
	m = r.host.Scan(t.Context())
	if n := len(m.GPUs[0].MIG.Devices); n != 2 || len(m.Skipped) > 0 || m.GPUs[0].MIG.Mode != "DPX/NPS4" {
		t.Errorf("afterwards: %d partitions, %s, skipped %v", n, m.GPUs[0].MIG.Mode, m.Skipped)
	}
	again := newRig(t)
	again.Write(again.pci("current_compute_partition"), "QPX")
	if got := again.host.Scan(t.Context()).GPUs[0].Health.String(); !strings.HasPrefix(got, "unhealthy: its partitions are unknown: ") {
		t.Errorf("in doubt from the start: %q", got)
	}
}

// GPUs come and go with the driver, and a topology of any size is read in part or
// not at all.
func TestDriver(t *testing.T) {
	r := newRig(t)
	r.Remove("sys/class/kfd")
	m := r.host.Scan(t.Context())
	if len(m.GPUs) > 0 || !strings.Contains(fmt.Sprint(m.Probes), "KFD is absent: ") {
		t.Errorf("GPUs %v, probes %v", m.GPUs, m.Probes)
	}
	r.Remove("sys/module/amdgpu")
	if m = r.host.Scan(t.Context()); !strings.Contains(fmt.Sprint(m.Probes), "the amdgpu driver is not loaded") {
		t.Errorf("probes %v", m.Probes)
	}
	r = newRig(t)
	r.host.Scan(t.Context())
	for i := range 300 {
		r.Dir(fmt.Sprintf(nodes+"%d", 100+i))
	}
	m = r.host.Scan(t.Context())
	if len(m.GPUs) != 2 || !strings.Contains(fmt.Sprint(m.Skipped), "has 303 nodes, more than 256") {
		t.Errorf("GPUs %v, probes %v", m.GPUs, m.Probes)
	}
}
