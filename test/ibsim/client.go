package ibsim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
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
	dataLength = dataHeader + ib.Size
	anyLID     = 0xffff

	patience = 2 * time.Second
	// attempts are made for each MAD: ibsim can drop some.
	attempts = 4
	answerIn = 250 * time.Millisecond
)

// client is one process, as ibsim sees it, on one node.
type client struct {
	control, data *net.UnixConn
	out           *net.UnixAddr
	id            uint32
}

// Open is an [ib.Transport] of a node: "H-" or "S-" and a GUID, or its
// description.
func (s *Sim) Open(node string) (ib.Transport, error) {
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
		return nil, errors.New("refused")
	}
	return b[controlHeader:], nil
}

// Exchange implements [ib.Transport].
func (c *client) Exchange(ctx context.Context, request *ib.MAD) (ib.MAD, error) {
	out := make([]byte, dataLength)
	binary.NativeEndian.PutUint32(out, anyLID)
	binary.NativeEndian.PutUint32(out[4:], anyLID)
	binary.BigEndian.PutUint64(out[24:], ib.Size)
	copy(out[dataHeader:], request[:])
	for range attempts {
		if ctx.Err() != nil {
			return ib.MAD{}, ctx.Err()
		}
		if _, err := c.data.WriteToUnix(out, c.out); err != nil {
			return ib.MAD{}, err
		}
		answer, err := c.answer(request)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return answer, err
		}
	}
	return ib.MAD{}, ib.ErrNoAnswer
}

func (c *client) answer(request *ib.MAD) (ib.MAD, error) {
	in := make([]byte, dataLength)
	if err := c.data.SetReadDeadline(time.Now().Add(answerIn)); err != nil {
		return ib.MAD{}, err
	}
	for {
		n, _, err := c.data.ReadFromUnix(in)
		if err != nil {
			return ib.MAD{}, err
		}
		if n == dataLength && request.Answers(in[dataHeader:]) {
			return ib.MAD(in[dataHeader:]), nil
		}
	}
}

// Close implements [ib.Transport].
func (c *client) Close() error {
	_, err := c.call(typeDisconnect, nil)
	return errors.Join(err, c.control.Close(), c.data.Close())
}
