package cdi

import (
	"testing"
)

func FuzzName(f *testing.F) {
	f.Add("heddle.dev/rdma=0123456789ab-0123456789abcdef")
	f.Add("heddle.dev/gpu=../../x")
	f.Fuzz(func(t *testing.T, name string) {
		got, ok := ParseName(name)
		if ok && got.String() != name {
			t.Errorf("%q is %q and %q", name, got.Kind, got.Device)
		}
	})
}
