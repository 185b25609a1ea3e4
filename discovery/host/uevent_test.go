package host

import (
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUevent(t *testing.T) {
	for _, tt := range []struct {
		name, message string
		want          bool
	}{
		{"an HCA comes", "add@/devices/pci0000:10/x\x00ACTION=add\x00DEVPATH=/devices/pci0000:10/x\x00SUBSYSTEM=infiniband\x00SEQNUM=1\x00", true},
		{"a GPU's driver goes", "unbind@/devices/pci0000:10/x\x00ACTION=unbind\x00DEVPATH=/devices/pci0000:10/x\x00SUBSYSTEM=pci\x00", true},
		{"a pod's veth", "add@/devices/virtual/net/veth1\x00ACTION=add\x00DEVPATH=/devices/virtual/net/veth1\x00SUBSYSTEM=net\x00", false},
		{"a bond", "add@/devices/virtual/net/bond0\x00ACTION=add\x00DEVPATH=/devices/virtual/net/bond0\x00SUBSYSTEM=net\x00", true},
		{"the driver", "add@/module/nvidia\x00ACTION=add\x00DEVPATH=/module/nvidia\x00SUBSYSTEM=module\x00", true},
		{"a disk", "change@/devices/x\x00ACTION=change\x00DEVPATH=/devices/x\x00SUBSYSTEM=block\x00", false},
		{"udev's own", "libudev\x00\xfe\xed\xca\xfe", false},
		{"nothing", "", false},
	} {
		e, ok := parseUevent([]byte(tt.message))
		if got := ok && e.concerns(Vendors()); got != tt.want {
			t.Errorf("%s: %+v, %t, want %t", tt.name, e, got, tt.want)
		}
	}
}

// newLink is an RTM_NEWLINK message: an MTU and a name.
func newLink(name string) []byte {
	var attributes []byte
	add := func(kind uint16, value []byte) {
		attributes = binary.NativeEndian.AppendUint16(attributes, uint16(4+len(value)))
		attributes = binary.NativeEndian.AppendUint16(attributes, kind)
		attributes = append(attributes, value...)
		for len(attributes)%4 != 0 {
			attributes = append(attributes, 0)
		}
	}
	add(4, []byte{0xdc, 5, 0, 0})
	add(3, append([]byte(name), 0))
	b := binary.NativeEndian.AppendUint32(nil, uint32(32+len(attributes)))
	return append(append(b, make([]byte, 28)...), attributes...)
}

func TestLinkNames(t *testing.T) {
	two := append(newLink("ens1f0np0"), newLink("ib0")...)
	if diff := cmp.Diff([]string{"ens1f0np0", "ib0"}, linkNames(two)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := linkNames(two[:len(two)-3]); len(got) != 1 {
		t.Errorf("a message that is cut off gives %v", got)
	}
}

func FuzzUevent(f *testing.F) {
	f.Add([]byte("add@/devices/x\x00ACTION=add\x00SUBSYSTEM=net\x00"))
	f.Add([]byte("@\x00=\x00="))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parseUevent(b); !ok && e.concerns(Vendors()) && e.action != "" {
			t.Errorf("%+v", e)
		}
	})
}

func FuzzLinkNames(f *testing.F) {
	f.Add(newLink("ens1f0np0"))
	f.Add([]byte{16, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range linkNames(b) {
			if len(name) > len(b) {
				t.Error(name)
			}
		}
	})
}
