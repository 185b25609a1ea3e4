// Package ib finds the InfiniBand switch and port behind every HCA port by
// directed-route management datagrams (SMPs): NodeInfo and NodeDescription of
// the node one hop away, which the switch's firmware answers whether or not a
// subnet manager ran. On request it also asks the ports of a leaf switch for
// its uplinks, at a bounded rate.
//
// It owns the codec of those datagrams and the kernel's interface to them,
// /dev/infiniband/umadN. It never sends anything but Get, never goes more than
// two hops, never acts as a subnet manager, and trusts no answer: every byte
// is checked before it is used.
package ib
