//go:build linux

package vm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// ethernet is a switch between QEMU's socket network devices, on which each frame follows its length.
type ethernet struct {
	mu    sync.RWMutex
	ports []*ethernetPort
	// stations has the port of each address that sent a frame.
	stations map[[6]byte]*ethernetPort
}

// ethernetPort sends frames, with their lengths, from a queue: a guest that takes none, since its link is down, must
// not stop the others.
type ethernetPort struct {
	conn  net.Conn
	queue chan []byte
}

// queueLength is far above the packets that soft RoCE has in flight.
const queueLength = 4096

// connect adds a port and returns the end for QEMU, which the caller closes.
func (e *ethernet) connect() (*os.File, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("port of the switch: %w", err)
	}
	own, other := os.NewFile(uintptr(pair[0]), "switch"), os.NewFile(uintptr(pair[1]), "qemu")
	defer own.Close() // FileConn duplicates it.
	conn, err := net.FileConn(own)
	if err != nil {
		other.Close()
		return nil, fmt.Errorf("port of the switch: %w", err)
	}
	p := &ethernetPort{conn: conn, queue: make(chan []byte, queueLength)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ports = append(e.ports, p)
	go p.send()
	go e.receive(p)
	return other, nil
}

// send writes what is queued until the port is closed.
func (p *ethernetPort) send() {
	for frame := range p.queue {
		if _, err := p.conn.Write(frame); err != nil {
			return
		}
	}
}

// receive forwards a port's frames until it is closed.
func (e *ethernet) receive(from *ethernetPort) {
	in := bufio.NewReaderSize(from.conn, 1<<18)
	var length [4]byte
	for {
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return
		}
		frame := make([]byte, 4+binary.BigEndian.Uint32(length[:]))
		copy(frame, length[:])
		if _, err := io.ReadFull(in, frame[4:]); err != nil {
			return
		}
		if len(frame) >= 4+12 {
			e.forward(from, frame, [6]byte(frame[4:10]), [6]byte(frame[10:16]))
		}
	}
}

// forward queues a frame at the port of its destination, or at all others if that is not known.
func (e *ethernet) forward(from *ethernetPort, frame []byte, destination, source [6]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stations[source] = from
	to := e.ports
	if p, ok := e.stations[destination]; ok {
		to = []*ethernetPort{p}
	}
	for _, p := range to {
		if p == from {
			continue
		}
		select {
		case p.queue <- frame:
		default: // Dropped, as a switch does.
		}
	}
}

func (e *ethernet) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.ports {
		p.conn.Close()
	}
}
