package wellknown_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestSyntax(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, tt := range []struct {
		name  string
		check func(string) error
		good  []string
		bad   []string
	}{
		{"value", wellknown.CheckValue, []string{"", "a", "H800_NVLINK_80GB", "a.b-c_D9", long[:63]}, []string{"a b", "-a", "a.", "é", long, "a/b"}},
		{"key", wellknown.CheckKey, []string{"ring", "cloud.ebtech.com/gpu", "a/B_c"}, []string{"", "/a", "a/", "A/b", "a/b/c", "a..b/c", "-a/b", strings.Repeat("a", 254) + "/b"}},
		{"resource", wellknown.CheckResource, []string{"rdma/hca_shared_devices_ib", "nvidia.com/gpu"}, []string{"gpu", "kubernetes.io/gpu", "node.kubernetes.io/gpu", "requests.x/gpu", "A.com/gpu"}},
		{"domain", wellknown.CheckDomain, []string{"a", "nvidia.com", "a-b.c0"}, []string{"", "a..b", "a-.b", "A", "a_b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, s := range tt.good {
				if err := tt.check(s); err != nil {
					t.Errorf("%q: %v", s, err)
				}
			}
			for _, s := range tt.bad {
				if tt.check(s) == nil {
					t.Errorf("%q passes", s)
				}
			}
		})
	}
}

func TestValue(t *testing.T) {
	long := strings.Repeat("ab-", 40)
	for in, want := range map[string]string{
		"NVIDIA H100 80GB HBM3":          "NVIDIA-H100-80GB-HBM3",
		"Standard PC (Q35 + ICH9, 2009)": "Standard-PC-Q35--ICH9-2009",
		"  .-_":                          "",
		"é":                              "",
	} {
		if got := wellknown.Value(in); got != want {
			t.Errorf("Value(%q) = %q, want %q", in, got, want)
		}
	}
	got := wellknown.Value(long)
	if len(got) > wellknown.MaxLabel || got == wellknown.Value(long+"c") || got != wellknown.Value(long) {
		t.Errorf("shortened to %q", got)
	}
	for in, want := range map[string]string{
		"NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-MIG-1g.24gb.gfx":    "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Wo-b538bae2-MIG-1g.24gb.gfx",
		"NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition-MIG-1g.24gb.me.all": "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-9fc1927c-MIG-1g.24gb.me.all",
		strings.Repeat("x", 80): strings.Repeat("x", 33) + "-d929cdee-" + strings.Repeat("x", 20),
	} {
		if got := wellknown.Value(in); got != want || len(got) > wellknown.MaxLabel {
			t.Errorf("%s is shortened to %s, want %s", in, got, want)
		}
	}
	if wellknown.Shorten("short", 10) != "short" {
		t.Error("what fits was shortened")
	}
}

func TestMoment(t *testing.T) {
	for text, want := range map[string]string{
		"2026-11-27T10:00:00+01:00": "2026-11-27T09:00:00Z",
		"9999-12-31T23:59:59-01:00": "0001-01-01T00:00:00Z", // The year 10000.
		"0000-01-01T00:00:00+01:00": "0001-01-01T00:00:00Z", // The year before 0.
		"0000-01-01T00:00:00Z":      "0000-01-01T00:00:00Z",
	} {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		b, err := wellknown.Moment(at).MarshalJSON()
		if got := strings.Trim(string(b), `"`); err != nil || got != want {
			t.Errorf("%s is %s, error %v, want %s", text, got, err, want)
		}
	}
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"":          "",
		"12345678":  "12345678",
		"123456789": "12345...",
		"1234é6789": "1234...", // é has two bytes, of which one would remain.
	} {
		if got := wellknown.ClipTo(in, 8); got != want {
			t.Errorf("ClipTo(%q) = %q, want %q", in, got, want)
		}
	}
	if got := wellknown.Clip(strings.Repeat("x", 1<<20)); len(got) != 80 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, key string
		want         bool
	}{
		{"a.com/b", "a.com/b", true},
		{"a.com/b", "a.com/bb", false},
		{"a.com/b.*.count", "a.com/b.x.count", true},
		{"a.com/b.*.count", "a.com/b.count", false},
		{"a.com/b.*.count", "a.com/b..count", false},
		{"a/x*", "a/x", false},
	} {
		if got := wellknown.Match(tt.pattern, tt.key); got != tt.want {
			t.Errorf("Match(%q, %q) = %t", tt.pattern, tt.key, got)
		}
	}
}

func TestNamesAreValidAndDistinct(t *testing.T) {
	d := wellknown.DefaultDomains()
	keys := d.NodeLabels()
	for _, key := range append(keys, d.MIGKey("1g.10gb+me", wellknown.GPUCount), d.MIGResource("")) {
		if err := wellknown.CheckKey(strings.ReplaceAll(key, "*", "x")); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(keys)
	if slices.Contains(keys, d.Product()) == false || len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("doubled keys in %v", keys)
	}
	for _, resource := range []string{d.GPUResource(), d.SGPUResource(), d.VCoreResource(), d.VMemoryResource(), wellknown.RDMAResource} {
		if err := wellknown.CheckResource(resource); err != nil {
			t.Error(err)
		}
	}
}

func FuzzValue(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3")
	f.Add(strings.Repeat(".", 53) + "x" + strings.Repeat("-", 20) + "y")
	f.Fuzz(func(t *testing.T, s string) {
		if err := wellknown.CheckValue(wellknown.Value(s)); err != nil {
			t.Error(err)
		}
	})
}
