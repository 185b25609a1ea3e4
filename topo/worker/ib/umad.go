package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// The kernel's interface of /dev/infiniband/umadN, ABI version 5
// (include/uapi/rdma/ib_user_mad.h): a datagram is written and read behind a
// header of 64 bytes, once ENABLE_PKEY was asked for.
const (
	umadHeader = 64
	umadLength = umadHeader + len(mad{})
	umadHop    = 0xffff

	// Offsets in the header; its numbers are the processor's but for those
	// that go over the wire.
	offAgent   = 0
	offErrno   = 4
	offTimeout = 8
	offRetries = 12
	offLength  = 16
	offLID     = 28
)

// The kernel repeats a request without an answer. A switch answers within
// a few milliseconds.
const (
	umadTimeoutMS = 200
	umadRetries   = 2
	// umadPatience is past the kernel's own last try.
	umadPatience = (umadRetries + 2) * umadTimeoutMS * time.Millisecond
)

var (
	// ErrNotInfiniBand means that a port carries no SMPs: the kernel's answer
	// for RoCE, for virtual functions and for HCAs of several planes.
	ErrNotInfiniBand = errors.New("the port carries no SMPs")
	errNoAnswer      = errors.New("no answer")
)

// UMAD is one port of one HCA, through which SMPs and queries go: an open
// /dev/infiniband/umadN. It is not safe for concurrent use.
type UMAD struct {
	file *os.File
	// agent is the kernel's number of this user of the port, administration that
	// of its queries to the subnet administrator, manager that of its questions for counters.
	agent, administration, manager, tid uint32
	// noSMI means that the port has no queue pair 0, noServices that it has no queue pair 1.
	noSMI, noServices bool
	// key is the fabric's M_Key.
	key mkey
	// pace is received from before each SMP; nil: they are sent at once.
	pace <-chan time.Time
}

// NewUMAD takes a file of the kernel's interface over which directed-route SMPs
// and queries may be sent, all as this agent.
func NewUMAD(file *os.File, agent uint32) *UMAD {
	return &UMAD{file: file, agent: agent, administration: agent, manager: agent}
}

// Close ends the agent.
func (u *UMAD) Close() error { return u.file.Close() }

// get asks the node at the end of path for an attribute.
func (u *UMAD) get(ctx context.Context, attribute uint16, modifier byte, path []byte) (data, error) {
	if u.noSMI {
		return data{}, ErrNotInfiniBand
	}
	if u.pace != nil {
		select {
		case <-ctx.Done():
			return data{}, ctx.Err()
		case <-u.pace:
		}
	}
	u.tid++
	request := request(u.tid, attribute, modifier, path)
	binary.BigEndian.PutUint64(request[offMKey:], u.key.value)
	out := encodeUMAD(u.agent, request)
	answer, err := u.exchange(ctx, &out, request)
	if err != nil {
		return data{}, err
	}
	return answer.data()
}

// exchange sends a request, out with its header, and waits for the answer.
func (u *UMAD) exchange(ctx context.Context, out *[umadLength]byte, request *mad) (*mad, error) {
	deadline := time.Now().Add(umadPatience)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if err := u.file.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := u.file.Write(out[:]); err != nil {
		return nil, cause(err)
	}
	var in [umadLength]byte
	for ctx.Err() == nil {
		n, err := u.file.Read(in[:])
		if err != nil {
			return nil, cause(err)
		}
		if answer, done, err := decodeUMAD(in[:n], request); done {
			return answer, err
		}
	}
	return nil, ctx.Err()
}

// cause leaves out the file, which the caller names.
func cause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errNoAnswer
	}
	if at, ok := errors.AsType[*os.PathError](err); ok {
		return at.Err
	}
	return err
}

// encodeUMAD puts a request behind its header.
func encodeUMAD(agent uint32, m *mad) [umadLength]byte {
	var b [umadLength]byte
	ne := binary.NativeEndian
	ne.PutUint32(b[offAgent:], agent)
	ne.PutUint32(b[offTimeout:], umadTimeoutMS)
	ne.PutUint32(b[offRetries:], umadRetries)
	ne.PutUint32(b[offLength:], uint32(len(m)))
	binary.BigEndian.PutUint16(b[offLID:], umadHop)
	copy(b[umadHeader:], m[:])
	return b
}

// decodeUMAD reads what the kernel gave. It reports whether that ends the
// exchange: an answer, or the request itself come back with an error. Late
// answers to earlier requests do not.
func decodeUMAD(b []byte, request *mad) (answer *mad, done bool, err error) {
	if len(b) < umadLength {
		return nil, false, nil
	}
	body := mad(b[umadHeader:])
	if !body.sameTransaction(request) {
		return nil, false, nil
	}
	switch errno := syscall.Errno(binary.NativeEndian.Uint32(b[offErrno:])); {
	case errno == syscall.ETIMEDOUT:
		return nil, true, errNoAnswer
	case errno != 0:
		return nil, true, fmt.Errorf("send: %w", errno)
	}
	return &body, request.isAnswer(&body), nil
}

func (u *UMAD) nodeInfo(ctx context.Context, path ...byte) (Node, error) {
	d, err := u.get(ctx, attrNodeInfo, 0, path)
	if err != nil {
		return Node{}, fmt.Errorf("NodeInfo: %w", err)
	}
	n, err := d.nodeInfo()
	if err != nil {
		return Node{}, fmt.Errorf("NodeInfo: %w", err)
	}
	return n, nil
}

func (u *UMAD) nodeDescription(ctx context.Context, path ...byte) (string, error) {
	d, err := u.get(ctx, attrNodeDesc, 0, path)
	if err != nil {
		return "", fmt.Errorf("NodeDescription: %w", err)
	}
	return d.nodeDescription(), nil
}

func (u *UMAD) portIsDown(ctx context.Context, port byte, path ...byte) (bool, error) {
	d, err := u.get(ctx, attrPortInfo, port, path)
	if err != nil {
		return false, fmt.Errorf("PortInfo: %w", err)
	}
	return d.isDown(), nil
}
