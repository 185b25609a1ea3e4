package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/links"
	"github.com/heddle-dev/heddle/topo/worker"
)

// Performance management (InfiniBand Architecture 1.4, 16.1): a switch answers for each of its ports on the queue
// pair 1 of its LID, with its attribute where an SMP has it.
const (
	classPerformance         = 0x04
	attrPortCounters         = 0x0012
	attrPortCountersExtended = 0x001d
	offPortSelect            = 1
)

var errNoServices = errors.New("the device has no queue pair 1")

// answer is the outcome of asking one port.
type answer struct {
	Node
	// counters are the switch port's, nil if they were not asked for or did not come for a reason.
	counters *v1alpha1.Counters
	reason   error
}

// performance returns a Get of the counters of a port.
func performance(tid uint32, attribute uint16, port byte) *mad {
	m := query(tid, attribute, 0)
	m[offClass], m[offVersion] = classPerformance, classVersion
	m[offData+offPortSelect] = port
	return m
}

// counters reads the counters of a port of the switch behind the port p. The switch's LID is in the PortInfo of its
// port 0. If a counter has stopped at its highest value, the wide ones are asked for too, which not every switch has.
func (u *UMAD) counters(ctx context.Context, p *worker.Port, port byte) (*v1alpha1.Counters, error) {
	if u.noServices {
		return nil, errNoServices
	}
	info, err := u.get(ctx, attrPortInfo, 0, []byte{byte(p.Port)}) //nolint:gosec // Port numbers are 1 to 255.
	if err != nil {
		return nil, fmt.Errorf("PortInfo: %w", u.key.blame(err))
	}
	lid := info.lid()
	if lid == 0 || lid > lastUnicastLID {
		return nil, fmt.Errorf("%w: LID %d of a switch", errValue, lid)
	}
	m, err := u.performance(ctx, p, attrPortCounters, lid, port)
	if err != nil {
		return nil, fmt.Errorf("PortCounters: %w", err)
	}
	c := m.counters()
	if len(links.Full(c)) > 0 {
		if m, err = u.performance(ctx, p, attrPortCountersExtended, lid, port); err == nil {
			m.widen(c)
		}
	}
	return c, nil
}

// performance asks the node with a LID for an attribute of one of its ports.
func (u *UMAD) performance(
	ctx context.Context, p *worker.Port, attribute, lid uint16, port byte,
) (*mad, error) {
	u.tid++
	m := performance(u.tid, attribute, port)
	out := encodeUMAD(u.manager, m)
	toServices(&out, lid, p.PKeyIndex)
	in, err := u.exchange(ctx, &out, m)
	if err != nil {
		return nil, err
	}
	if _, err = in.data(); err != nil {
		return nil, err
	}
	if of := in[offData+offPortSelect]; of != port {
		return nil, fmt.Errorf("%w: of port %d", errValue, of)
	}
	return in, nil
}

// lid reads the LID in PortInfo.
func (d *data) lid() uint16 { return binary.BigEndian.Uint16(d[16:]) }

// counters reads PortCounters.
func (m *mad) counters() *v1alpha1.Counters {
	d := m[offData:]
	return &v1alpha1.Counters{
		SymbolErrors: int64(binary.BigEndian.Uint16(d[4:])), LinkErrorRecoveries: int64(d[6]), LinkDowns: int64(d[7]),
		ReceiveErrors: int64(binary.BigEndian.Uint16(d[8:])),
	}
}

// widen takes the higher values of PortCountersExtended: a switch without a wide counter leaves it 0.
func (m *mad) widen(c *v1alpha1.Counters) {
	const offErrors = 72
	for i, n := range []*int64{&c.SymbolErrors, &c.LinkErrorRecoveries, &c.LinkDowns, &c.ReceiveErrors} {
		if wide := binary.BigEndian.Uint64(m[offData+offErrors+8*i:]); wide <= math.MaxInt64 {
			*n = max(*n, int64(wide))
		}
	}
}
