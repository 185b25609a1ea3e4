// Package lldp receives what Ethernet switches announce of themselves: which
// switch and which of its ports a cable ends in (IEEE 802.1AB).
//
// It owns one packet socket for each network device and the neighbors seen on
// it, each for the time to live in its frame. It listens on the members of a bond
// and never on the bond, which shows frames of one member at random; it never
// sends. A frame is any bytes from outside: it is bounded, checked and cleaned
// before anything of it is kept.
package lldp
