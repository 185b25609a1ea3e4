package enforce

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// TestRegions: shares of AMD's GPUs are limited by the kernel where it counts their memory, and
// by nothing where it does not, with the reason.
func TestRegions(t *testing.T) {
	const two = "drm/0000:03:00.0/stolen 4096\ndrm/0000:03:00.0/vram 68719476736\ndrm/0000:83:00.0/vram 68719476736\nnvidia/x 1\n"
	m := &machine.Machine{Driver: machine.Driver{Version: "6.10.5", Vendor: "amd.com"}, GPUs: []machine.GPU{
		{UUID: "GPU-a", Vendor: "amd.com", PCI: "0000:03:00.0", MemoryMiB: 65536},
		{UUID: "GPU-b", Vendor: "amd.com", PCI: "0000:83:00.0", MemoryMiB: 65536, Index: 1},
	}}
	for name, tt := range map[string]struct {
		capacity, hook string
		want           config.Enforcer
		why            string
	}{
		"both":            {two, "/state/heddle-cdi-hook", config.EnforceDMem, ""},
		"no hook":         {two, "", config.EnforceNone, "not by dmem, because heddle-cdi-hook is not in the state directory"},
		"an older kernel": {"", "/state/heddle-cdi-hook", config.EnforceNone, "not by dmem, because the kernel has no dmem controller"},
		"an older driver": {"drm/0000:03:00.0/vram 1\n", "/state/heddle-cdi-hook", config.EnforceNone, "the driver of GPU 1 counts nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			sys := t.TempDir()
			if tt.capacity != "" {
				file := filepath.Join(sys, capacityFile)
				if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(tt.capacity), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			facts := (&Host{SysRoot: sys, OwnHook: tt.hook}).Read(m, nil)
			choice, err := choose(&config.Enforce{Memory: config.EnforceAuto, Compute: config.EnforceAuto}, &facts)
			if err != nil || choice.Memory != tt.want || choice.Compute != config.EnforceNone || !strings.Contains(choice.WhyMemory, tt.why) {
				t.Fatalf("choice %+v, %v", choice, err)
			}
			d := &dmem{own: tt.hook, sysRoot: sys}
			edits, err := d.edits(t.Context(), &Limit{GPUs: []GPU{
				{Share: allocation.Share{UUID: "GPU-a", MemoryMiB: 4096}, PCI: "0000:03:00.0", Maker: "amd.com"},
				{Share: allocation.Share{UUID: "GPU-b", MemoryMiB: 1024}, PCI: "0000:83:00.0", Maker: "amd.com"},
			}})
			if (err == nil) != (tt.want == config.EnforceDMem) {
				t.Fatalf("edits %+v, %v", edits, err)
			}
			want := []string{"heddle-cdi-hook", "dmem", "drm/0000:03:00.0/vram=4294967296", "drm/0000:83:00.0/vram=1073741824"}
			if err == nil && (len(edits.Hooks) != 1 || edits.Hooks[0].HookName != "createRuntime" ||
				edits.Hooks[0].Path != tt.hook || !slices.Equal(edits.Hooks[0].Args, want)) {
				t.Errorf("hooks %+v", edits.Hooks)
			}
		})
	}
}
