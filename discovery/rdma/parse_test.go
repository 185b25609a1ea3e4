package rdma

import (
	"strings"
	"testing"
)

func TestParseRate(t *testing.T) {
	for in, want := range map[string]float64{
		"400 Gb/sec (4X NDR)": 400, "2.5 Gb/sec (1X SDR)": 2.5, "800 Gb/sec (4X XDR)": 800, "100 Gb/sec": 100,
		"": -1, "fast": -1, "-5 Gb/sec": -1, "NaN Gb/sec": -1, "1e99 Gb/sec": -1, "10 Mb/sec": -1,
	} {
		got, err := parseRate(in)
		if (err != nil) != (want < 0) || (err == nil && got != want) {
			t.Errorf("parseRate(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestParseGUID(t *testing.T) {
	for in, want := range map[string]string{
		"946D:ae03:0012:0000": "946d:ae03:0012:0000",
		"0000:0000:0000:0000": "",
		"946d:ae03:0012":      "error",
		"":                    "error",
		"0x946dae030012:000":  "error",
	} {
		got, err := parseGUID(in)
		if (err != nil) != (want == "error") || (err == nil && got != want) {
			t.Errorf("parseGUID(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestParseLID(t *testing.T) {
	for in, want := range map[string]int{
		"0x40": 0x40, "0xffff": 0xffff, "0x0": 0, "0xffffff": 0xffffff,
		"": -1, "64": -1, "0x": -1, "0x1_0": -1, "-0x1": -1, "0xffffffffff": -1, "0x80000000": -1,
	} {
		got, err := parseLID(in)
		if (err != nil) != (want < 0) || (err == nil && got != want) {
			t.Errorf("parseLID(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
}

func TestParseWords(t *testing.T) {
	for in, want := range map[string]string{"4: ACTIVE": "ACTIVE", "5: LinkUp": "LinkUp", "1: CA": "CA", "weird": "weird", "": ""} {
		if got := parseWords(in); got != want {
			t.Errorf("parseWords(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzParse: what a file of one value may have.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"400 Gb/sec (4X NDR)", "Inf Gb/sec", "0x40", "0xffffffffff", "fe80:0000:0000:0000:946d:ae03:0012:0000",
		"0000:0000:0000:0000:0000:0000:0000:0000", "4: ACTIVE",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if gbps, err := parseRate(s); err == nil && !(gbps >= 0 && gbps < 1e6) {
			t.Errorf("%q is %v", s, gbps)
		}
		if n, err := parseLID(s); err == nil && n < 0 {
			t.Errorf("%q is %d", s, n)
		}
		if _, guid, err := parseGID(s); err == nil && guid != "" && !strings.HasSuffix(strings.ToLower(s), guid) {
			t.Errorf("%q has GUID %q", s, guid)
		}
		if got := parseWords(s); len(got) > 64 || !strings.Contains(s, got) {
			t.Errorf("%q is %q", s, got)
		}
	})
}
