package ib

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"
)

// The kernel's interface of /dev/infiniband/umadN, ABI version 5
// (include/uapi/rdma/ib_user_mad.h): a datagram is written and read behind a
// header of 64 bytes, once ENABLE_PKEY was asked for.
const (
	umadHeader = 64
	umadLength = umadHeader + Size
	umadHop    = 0xffff

	// Offsets in the header; its numbers are the processor's but for those
	// that go over the wire.
	offAgent   = 0
	offErrno   = 4
	offTimeout = 8
	offRetries = 12
	offLength  = 16
	offLID     = 28

	// Ioctls: _IO(0x1b, 3), _IOWR(0x1b, 1, 28 bytes).
	umadEnablePKey    = 0x1b03
	umadRegisterAgent = 0xc01c1b01

	// The request of REGISTER_AGENT: its number is filled in by the kernel; of
	// the rest only class and version matter, since nothing but answers is
	// received.
	registerLength = 28
	offRegClass    = 21
	offRegVersion  = 22
)

// The kernel repeats a request without an answer. A switch answers within
// a few milliseconds.
const (
	umadTimeoutMS = 200
	umadRetries   = 2
	// umadPatience is past the kernel's own last try.
	umadPatience = (umadRetries + 2) * umadTimeoutMS * time.Millisecond
)

// registration is REGISTER_AGENT for directed-route SMPs on queue pair 0.
func registration() [registerLength]byte {
	var b [registerLength]byte
	b[offRegClass], b[offRegVersion] = ClassDirectedRoute, classVersion
	return b
}

// encodeUMAD puts a request behind its header.
func encodeUMAD(agent uint32, m *MAD) [umadLength]byte {
	var b [umadLength]byte
	ne := binary.NativeEndian
	ne.PutUint32(b[offAgent:], agent)
	ne.PutUint32(b[offTimeout:], umadTimeoutMS)
	ne.PutUint32(b[offRetries:], umadRetries)
	ne.PutUint32(b[offLength:], Size)
	binary.BigEndian.PutUint16(b[offLID:], umadHop)
	copy(b[umadHeader:], m[:])
	return b
}

// decodeUMAD reads what the kernel gave. It reports whether that ends the
// exchange: an answer, or the request itself come back with an error. Late
// answers to earlier requests do not.
func decodeUMAD(b []byte, m *MAD) (answer MAD, done bool, err error) {
	if len(b) < umadLength {
		return MAD{}, false, nil
	}
	body := b[umadHeader:umadLength]
	be := binary.BigEndian
	if be.Uint32(body[offTID+4:]) != be.Uint32(m[offTID+4:]) {
		return MAD{}, false, nil
	}
	switch errno := syscall.Errno(binary.NativeEndian.Uint32(b[offErrno:])); {
	case errno == syscall.ETIMEDOUT:
		return MAD{}, true, ErrNoAnswer
	case errno != 0:
		return MAD{}, true, fmt.Errorf("send: %w", errno)
	case !m.Answers(body):
		return MAD{}, false, nil
	}
	return MAD(body), true, nil
}
