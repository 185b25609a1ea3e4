package nvml

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
)

func TestParseBusID(t *testing.T) {
	for in, want := range map[string]string{
		"00000000:18:00.0": "0000:18:00.0",
		"0000:3B:00.0":     "0000:3b:00.0",
		"00010000:E1:00.0": "10000:e1:00.0", // VMD.
		"00000012:01:00.0": "0012:01:00.0",  // GB200.
		"":                 "",
		"18:00.0":          "",
	} {
		got, err := parseBusID(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("parseBusID(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func FuzzParseBusID(f *testing.F) {
	f.Add("00000000:18:00.0")
	f.Add("ffffffff:ff:ff.f")
	f.Fuzz(func(t *testing.T, s string) {
		if address, err := parseBusID(s); err == nil {
			if again, err := parseBusID(address); err != nil || again != address {
				t.Errorf("%q gives %q, which gives %q, %v", s, address, again, err)
			}
		}
	})
}

// Names and numbers of real devices: NVIDIA's MIG user guide.
func TestMIGProfile(t *testing.T) {
	for _, tt := range []struct {
		name          string
		compute, gpu  int
		memory, total int64
		want          string
	}{
		{"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 1, 1, 4864, 40960, "1g.5gb"},
		{"NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", 1, 1, 9984, 81559, "1g.10gb+me"},
		{"", 1, 1, 4864, 40960, "1g.5gb"},
		{"NVIDIA A100-SXM4-40GB", 3, 3, 19968, 40960, "3g.20gb"},
		{"", 1, 3, 19968, 40960, "1c.3g.20gb"},
		{"", 7, 7, 81559, 81559, "7g.80gb"},
		{"", 1, 1, 0, 0, ""},
	} {
		if got := migProfile(tt.name, tt.compute, tt.gpu, tt.memory, tt.total); got != tt.want {
			t.Errorf("migProfile(%q, %d, %d, %d, %d) = %q, want %q",
				tt.name, tt.compute, tt.gpu, tt.memory, tt.total, got, tt.want)
		}
	}
}

func TestArchitecture(t *testing.T) {
	for _, tt := range []struct {
		major, minor int
		want         string
	}{
		{7, 0, "volta"},
		{7, 5, "turing"},
		{8, 0, "ampere"},
		{8, 6, "ampere"},
		{8, 9, "ada-lovelace"},
		{9, 0, "hopper"},
		{10, 0, "blackwell"},
		{10, 3, "blackwell"},
		{12, 0, "blackwell"},
		{99, 0, "undefined"},
	} {
		if got := architecture(tt.major, tt.minor); got != tt.want {
			t.Errorf("%d.%d is %q, want %q", tt.major, tt.minor, got, tt.want)
		}
	}
}

func TestSumLinks(t *testing.T) {
	got := sumLinks(map[string]int{"0000:3b:00.0": 2, machine.PeerNVSwitch: 1, "0000:1a:00.0": 1}, 25781)
	want := []machine.NVLink{
		{Peer: "0000:1a:00.0", Links: 1, MBps: new(int64(25781))},
		{Peer: "0000:3b:00.0", Links: 2, MBps: new(int64(51562))},
		{Peer: machine.PeerNVSwitch, Links: 1, MBps: new(int64(25781))},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
