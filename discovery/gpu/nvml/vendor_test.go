package nvml

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// The configuration's default is the vendor's domain.
func TestDomain(t *testing.T) {
	if got := Vendor().Domain; got != wellknown.DefaultDomains().Vendor {
		t.Errorf("%s, the default of domains.vendor is %s", got, wellknown.DefaultDomains().Vendor)
	}
}

func TestActions(t *testing.T) {
	for n, want := range map[uint32]gpu.Action{0: gpu.ActionNone, 1: ActionGPUReset, 4: ActionDrainAndReset, 7: ActionSystemReboot, 99: "recovery action 99"} {
		if got := action(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// configuration is the space of a virtual GPU: the vendor-specific capability
// after another one.
func configuration() []byte {
	b := make([]byte, 256)
	b[0x06], b[0x34] = 0x10, 0x60
	copy(b[0x60:], []byte{0x05, 0x80})
	record := append([]byte{0x09, 0, 0, 'V', 'F', 2, 4, 0xff, 0xff, 0, 22}, "550.90.05\x00r550_00\x00\x00\x00"...)
	record[2] = byte(len(record))
	copy(b[0x80:], record)
	return b
}

func TestParseVGPU(t *testing.T) {
	want := &machine.VGPU{HostDriverVersion: "550.90.05", HostDriverBranch: "r550_00"}
	got, err := parseVGPU(configuration())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	other := configuration()
	copy(other[0x40:], []byte{0x09, other[0x34], 5, 'X', 'X'}) // A vendor's capability with another signature.
	other[0x34] = 0x40
	if got, err := parseVGPU(other); err != nil || !cmp.Equal(want, got) {
		t.Errorf("behind another capability: %v, %v", got, err)
	}
	if got, err := parseVGPU(make([]byte, 256)); got != nil || err != nil {
		t.Errorf("physical GPU: %v, %v", got, err)
	}
}

func FuzzParseVGPU(f *testing.F) {
	f.Add(configuration())
	loop := make([]byte, 256)
	loop[0x06], loop[0x34], loop[0x41] = 0x10, 0x40, 0x40
	f.Add(loop)
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseVGPU(b); got != nil && (err != nil || len(got.HostDriverVersion) > 10) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func TestCatalog(t *testing.T) {
	codes := catalog()
	seen := map[uint64]bool{}
	for _, x := range codes.Rows {
		if x.First > x.Last || x.Text == "" || strings.HasSuffix(x.Text, ".") {
			t.Errorf("row %+v", x)
		}
		for n := x.First; n <= x.Last; n++ {
			if seen[n] {
				t.Errorf("XID %d has two rows", n)
			}
			seen[n] = true
		}
	}
	// What NVIDIA's own plugin has wrong, and what it has right.
	for n, want := range map[uint64]gpu.Severity{
		109: gpu.Fatal, 94: gpu.Application, 63: gpu.Ignore, 92: gpu.Ignore, 13: gpu.Application, 31: gpu.Application, 43: gpu.Ignore, 45: gpu.Application,
		68: gpu.Application, 48: gpu.Fatal, 64: gpu.Fatal, 79: gpu.Fatal, 95: gpu.Fatal, 119: gpu.Fatal, 140: gpu.Fatal, 74: gpu.Driver, 154: gpu.Driver, 12345: gpu.Driver,
	} {
		if got := codes.Code(n).Severity; got != want {
			t.Errorf("XID %d is %s, want %s", n, got, want)
		}
	}
	if got := codes.Code(12345).String(); got != "XID 12345" {
		t.Error(got)
	}
}
