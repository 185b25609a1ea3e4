package ib

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// guarded drops, as protect bits 2 and 3 have it, every SMP without the M_Key.
// Subnet managers' own simulator keeps the M_Key that it is given and answers
// without it, so it cannot show this. own is whether the HCA's port is guarded
// too.
func guarded(key uint64, own bool) script {
	open := script{attrNodeInfo: reply(info(nil)), attrNodeDesc: description("leaf-1"), attrPortInfo: reply(&data{})}
	s := script{}
	for attribute, answer := range open {
		s[attribute] = func(m mad) (mad, syscall.Errno) {
			if binary.BigEndian.Uint64(m[24:]) != key && (own || m[offHopCount] > 0) {
				return m, syscall.ETIMEDOUT
			}
			return answer(m)
		}
	}
	return s
}

func TestProtectedFabrics(t *testing.T) {
	const key = 0x1234567890abcdef
	for _, tt := range []struct {
		name   string
		files  map[string]string
		subnet string
		own    bool
		reason string
	}{
		{name: "the fabric's key", files: map[string]string{"default": "0x1234567890ABCDEF\n"}, own: true},
		{
			name: "of two fabrics", subnet: "fec0000000000001", own: true,
			files: map[string]string{"default": "1", "fec0000000000001": "1234567890abcdef"},
		},
		{name: "none", own: true, reason: "NodeInfo: no answer; if an M_Key protects the fabric, name it in the worker's Secret"},
		{name: "another fabric's", files: map[string]string{"default": "7"}, own: true, reason: "no answer; is the M_Key of file default this fabric's?"},
		{name: "another switch's", files: map[string]string{"default": "7"}, reason: "no answer; is the M_Key of file default this fabric's?"},
		{name: "no key", files: map[string]string{"default": "secret"}, reason: "M_Key default: it is not a number of 1 to 16"},
		{
			name: "of another name only", files: map[string]string{"fec0000000000002": "1"}, subnet: "fec0000000000001", own: true,
			reason: "an M_Key protects the fabric",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := infiniband(1, "umad0")
			p.Subnet = tt.subnet
			r := discover(t, New(func(string) (*UMAD, error) { return guarded(key, tt.own).device(t), nil }, dir, nil), p)
			switch {
			case tt.reason == "" && (len(r.Links) != 1 || r.Links[0].Switch.Name != "leaf-1"):
				t.Errorf("%+v", r)
			case tt.reason != "" && (len(r.Links) != 0 || len(r.Skipped) != 1 || !strings.Contains(r.Skipped[0].Reason, tt.reason)):
				t.Errorf("%+v, want %q", r.Skipped, tt.reason)
			}
			for _, s := range r.Skipped {
				if strings.Contains(s.Reason, "secret") {
					t.Errorf("the key is in the reason: %s", s.Reason)
				}
			}
		})
	}
}
