package sysfs

import (
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

func FuzzParsePlace(f *testing.F) {
	f.Add("devices/pci0000:10/0000:10:01.0/0000:11:00.0/virtio0/net/eth0")
	f.Add("devices/virtual/infiniband/rxe0")
	f.Add("pci:/pci0000:0/pci000000000:00/../..")
	f.Fuzz(func(t *testing.T, path string) {
		p := ParsePlace(path)
		for _, function := range p.Functions {
			if _, err := machine.ParseAddress(function); err != nil {
				t.Error(err)
			}
		}
		if p.Root != "" && !strings.Contains(path, p.Root) {
			t.Errorf("root %q is not on the path", p.Root)
		}
	})
}

// FuzzParse: what a file of one value may have.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"0x030200", "0X15B3", "0x", "-1", "-2147483648", "0-55,112-167", "7-3", ",", "10 21", "10 -1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if word, err := parseHex(s); err == nil && word != strings.ToLower(s) {
			t.Errorf("%q became %q", s, word)
		}
		if n, err := parseNUMA(s); err == nil && n != nil && *n < 0 {
			t.Errorf("%q is node %d", s, *n)
		}
		if list, err := parseCPUList(s); err == nil && (list != s || strings.Trim(s, "0123456789,-+") != "") {
			t.Errorf("%q is a list", s)
		}
		if row, err := parseDistances(s); err == nil && len(row) != len(strings.Fields(s)) {
			t.Errorf("%q has %d distances", s, len(row))
		}
	})
}

func FuzzParseVPD(f *testing.F) {
	f.Add(vpd("V3", "80fe3ea5"))
	f.Add([]byte{0x90, 0xff, 0xff, 'V', '3', 0xff})
	f.Add([]byte{0x0f, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, _ := parseVPD(b); len(got.V3) > 255 {
			t.Errorf("V3 has %d bytes", len(got.V3))
		}
	})
}
