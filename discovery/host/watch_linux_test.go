package host

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A message that is as long as the buffer may have lost what matters.
func TestMessagesThatAreCutOffMatter(t *testing.T) {
	h := &Host{}
	for _, s := range []source{{protocol: unix.NETLINK_ROUTE}, {protocol: unix.NETLINK_KOBJECT_UEVENT}} {
		if !h.accepts(s, make([]byte, maxEvent)) {
			t.Errorf("protocol %d: a long message is ignored", s.protocol)
		}
		if h.accepts(s, make([]byte, 64)) {
			t.Errorf("protocol %d: a message about nothing is accepted", s.protocol)
		}
	}
}
