package host

import "testing"

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

func FuzzUevent(f *testing.F) {
	f.Add([]byte("add@/devices/x\x00ACTION=add\x00SUBSYSTEM=net\x00"))
	f.Add([]byte("@\x00=\x00="))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := parseUevent(b); !ok && e.concerns(Vendors()) && e.action != "" {
			t.Errorf("%+v", e)
		}
	})
}
