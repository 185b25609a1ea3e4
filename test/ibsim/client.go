package ibsim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/topo/worker/ib"
)

// The sockets are abstract ones of datagrams; their names end in a NUL, which
// is part of the name (umad2sim/sim_client.c).
const (
	controlMagic   = 0xdeadbeef
	controlLength  = 80
	controlHeader  = 16
	typeConnect    = 1
	typeDisconnect = 2
	typeError      = 0

	// A datagram is addresses, a length and a MAD.
	dataHeader = 32
	dataLength = dataHeader + madLength
	madLength  = 256
	anyLID     = 0xffff

	// What the kernel puts before a MAD (include/uapi/rdma/ib_user_mad.h), and
	// what in a MAD is an answer, and to which transaction.
	umadHeader  = 64
	offErrno    = 4
	offMethod   = 3
	getResponse = 0x81
	offClass    = 1
	offTID      = 12
	tidLength   = 4
	offUMADLID  = 28

	// Where a datagram with a route by LIDs has its addresses, and the port's LID
	// is in the answer to a PortInfo.
	classSMP     = 0x81
	offSourceLID = 4
	offQueuePair = 8
	serviceQueue = 1
	offPortLID   = 80

	patience = 2 * time.Second
	// attempts are made for each MAD: ibsim can drop some. They end before
	// the reader of the device gives up.
	attempts = 7
	answerIn = 100 * time.Millisecond
)

// client is one process, as ibsim sees it, on one node.
type client struct {
	control, data *net.UnixConn
	out           *net.UnixAddr
	id            uint32
	// virtual: it is a virtual function, which sends no SMPs.
	virtual bool
}

// Open is the umad device of a node: "H-" or "S-" and a GUID, or its
// description. It waits while ibsim has as many clients as it can serve.
func (s *Sim) Open(node string) (*ib.UMAD, error) { return s.open(node, false) }

// OpenVirtual is the device of a virtual function of a node, which sends no SMPs.
func (s *Sim) OpenVirtual(node string) (*ib.UMAD, error) { return s.open(node, true) }

func (s *Sim) open(node string, virtual bool) (*ib.UMAD, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ibsim: %w", err)
	}
	device, kernel := os.NewFile(uintptr(ends[0]), "umad"), os.NewFile(uintptr(ends[1]), "kernel")
	s.slots <- struct{}{}
	c, err := s.connect(node)
	if err != nil {
		<-s.slots
		return nil, errors.Join(err, device.Close(), kernel.Close())
	}
	c.virtual = virtual
	go func() {
		c.serve(kernel)
		_ = errors.Join(c.Close(), kernel.Close()) // The simulator may be dead already.
		<-s.slots
	}()
	return ib.NewUMAD(device, 0), nil
}

func (s *Sim) connect(node string) (*client, error) {
	number := s.clients.Add(1)
	c := &client{}
	var err error
	if c.control, err = net.DialUnix("unixgram", s.address("ctl%d", number), s.address("ctl")); err != nil {
		return nil, fmt.Errorf("ibsim: %w", err)
	}
	// ibsim connects to this socket when it is asked to.
	if c.data, err = net.ListenUnixgram("unixgram", s.address("in%d", number)); err != nil {
		return nil, errors.Join(fmt.Errorf("ibsim: %w", err), c.control.Close())
	}
	request := make([]byte, 44)
	binary.NativeEndian.PutUint32(request, number)
	copy(request[12:43], node)
	answer, err := c.call(typeConnect, request)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ibsim: connect to %s: %w", node, err), c.control.Close(), c.data.Close())
	}
	c.id = binary.NativeEndian.Uint32(answer)
	c.out = s.address("out%d", c.id)
	return c, nil
}

func (s *Sim) address(format string, args ...any) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixgram", Name: "@" + s.name + ":" + fmt.Sprintf(format, args...) + "\x00"}
}

func (c *client) call(kind uint32, data []byte) ([]byte, error) {
	b := make([]byte, controlLength)
	ne := binary.NativeEndian
	ne.PutUint32(b, controlMagic)
	ne.PutUint32(b[4:], c.id)
	ne.PutUint32(b[8:], kind)
	ne.PutUint32(b[12:], uint32(len(data)))
	copy(b[controlHeader:], data)
	if _, err := c.control.Write(b); err != nil {
		return nil, err
	}
	if err := c.control.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	n, err := c.control.Read(b)
	if err != nil {
		return nil, err
	}
	if n != controlLength || ne.Uint32(b[8:]) == typeError {
		return nil, errors.New("rejected")
	}
	return b[controlHeader:], nil
}

// serve does what the kernel does for a device, until that is closed.
func (c *client) serve(device *os.File) {
	b := make([]byte, umadHeader+madLength)
	for {
		if n, err := device.Read(b); err != nil || n != len(b) {
			return
		}
		errno := syscall.Errno(0)
		if !c.send(b) {
			errno = syscall.ETIMEDOUT
		}
		binary.NativeEndian.PutUint32(b[offErrno:], uint32(errno))
		if _, err := device.Write(b); err != nil {
			return
		}
	}
}

// send replaces a request behind the kernel's header by its answer, if one comes.
func (c *client) send(b []byte) bool {
	mad := b[umadHeader:]
	if mad[offClass] == classSMP {
		return !c.virtual && c.exchange(mad, nil)
	}
	own := make([]byte, madLength)
	copy(own, []byte{1, classSMP, 1, 1, 17: 0x15, 32: 0xff, 33: 0xff, 34: 0xff, 35: 0xff})
	if !c.exchange(own, nil) {
		return false
	}
	// LIDs are the wire's in half of a number, as the queue pairs are.
	address := make([]byte, dataHeader)
	copy(address, b[offUMADLID:][:2])
	copy(address[offSourceLID:], own[offPortLID:][:2])
	binary.BigEndian.PutUint32(address[offQueuePair:], serviceQueue)
	binary.BigEndian.PutUint32(address[offQueuePair+4:], serviceQueue)
	return c.exchange(mad, address)
}

// exchange replaces a request by its answer, if one comes. Without an address it
// is a directed-route SMP.
func (c *client) exchange(mad, address []byte) bool {
	out := make([]byte, dataLength)
	binary.NativeEndian.PutUint32(out, anyLID)
	binary.NativeEndian.PutUint32(out[offSourceLID:], anyLID)
	copy(out, address)
	binary.BigEndian.PutUint64(out[24:], madLength)
	copy(out[dataHeader:], mad)
	for range attempts {
		if _, err := c.data.WriteToUnix(out, c.out); err != nil {
			return false
		}
		if c.answer(mad) {
			return true
		}
	}
	return false
}

func (c *client) answer(mad []byte) bool {
	in := make([]byte, dataLength)
	if err := c.data.SetReadDeadline(time.Now().Add(answerIn)); err != nil {
		return false
	}
	for {
		n, _, err := c.data.ReadFromUnix(in)
		if err != nil {
			return false
		}
		body := in[dataHeader:]
		isAnswer := body[offMethod] == getResponse && bytes.Equal(body[offTID:][:tidLength], mad[offTID:][:tidLength])
		if n == dataLength && isAnswer {
			copy(mad, body)
			return true
		}
	}
}

// Close takes leave of ibsim.
func (c *client) Close() error {
	_, err := c.call(typeDisconnect, nil)
	return errors.Join(err, c.control.Close(), c.data.Close())
}
