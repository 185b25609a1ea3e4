package rdma

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/internal/notify"
)

// PortID names the end of a cable: mlx5_0, 1, and under a LAG the slave.
type PortID struct {
	HCA    string
	Port   int
	Netdev string
}

// PortCounters is a reading of a port.
type PortCounters struct {
	v1alpha1.Counters
	// Bytes is counters/port_rcv_data and port_xmit_data, which count in units of four.
	Bytes int64
	// TransmitWaits is counters/port_xmit_wait: ticks in which data waited for the other end. Pauses are the
	// pause frames of priorities (PFC) that came in, by the statistics of mlx5 and bnxt_en.
	TransmitWaits, Pauses int64
}

// CounterScan is a reading of all ports.
type CounterScan struct {
	Time  time.Time
	Ports map[PortID]PortCounters
}

// Counters reads the error counters of all ports: those that mean harm to a cable, without the time
// and the rate; what a driver does not have is 0. They are not in a machine,
// since a machine that changes all the time would be published all the time.
type Counters struct {
	tree  sysfs.FS
	every time.Duration
	// live: the network devices of the tree are the kernel's, which answers for them by ioctl too.
	live bool
	last atomic.Pointer[CounterScan]
}

// CountersEvery is how often counters are read by default: each file is a question to the
// adapter's firmware.
const CountersEvery = 5 * time.Minute

// NewCounters reads below a root, /sys, so often.
func NewCounters(root string, every time.Duration) *Counters {
	tree := sysfs.New(root)
	return &Counters{tree: tree, every: every, live: apart(tree.Root()) == ""}
}

// Run reads until ctx ends and returns nil. Firmware that never answers keeps the
// one reading waiting, and nothing else.
func (c *Counters) Run(ctx context.Context) error {
	var scan bounded.Call[struct{}]
	for ctx.Err() == nil {
		_, _ = scan.Do(ctx, func() (struct{}, error) {
			c.Scan()
			return struct{}{}, nil
		})
		notify.Sleep(ctx, c.every)
	}
	return nil
}

// Scan reads once.
func (c *Counters) Scan() {
	all := map[PortID]PortCounters{}
	hcas, _ := c.tree.List(class) // Without the class no port has counters.
	for _, hca := range hcas {
		ports, _ := c.tree.List(class + "/" + hca + "/ports")
		for _, name := range ports {
			if number, err := strconv.Atoi(name); err == nil {
				c.port(PortID{HCA: hca, Port: number}, class+"/"+hca+"/ports/"+name, all)
			}
		}
	}
	c.last.Store(&CounterScan{time.Now(), all})
}

// Last returns the last reading, an empty one before the first. A nil Counters has none.
func (c *Counters) Last() CounterScan {
	if c == nil || c.last.Load() == nil {
		return CounterScan{}
	}
	return *c.last.Load()
}

// port reads ports/N/counters, and of Ethernet, which these do not count,
// the network device's; of a LAG each slave's.
func (c *Counters) port(id PortID, dir string, all map[PortID]PortCounters) {
	var e PortCounters
	var received, sent int64
	ok := c.numbers(dir+"/", map[string]*int64{
		"counters/symbol_error": &e.SymbolErrors, "counters/link_downed": &e.LinkDowns,
		"counters/link_error_recovery": &e.LinkErrorRecoveries, "counters/port_rcv_errors": &e.ReceiveErrors,
		"hw_counters/rx_icrc_encapsulated": &e.ICRCErrors, "counters/port_xmit_wait": &e.TransmitWaits,
		"counters/port_rcv_data": &received, "counters/port_xmit_data": &sent,
	})
	e.Bytes = 4 * (received + sent)
	netdev := c.tree.Text(dir + "/gid_attrs/ndevs/0")
	if strings.TrimSpace(c.tree.Text(dir+"/link_layer")) != "Ethernet" || netdev == "" || strings.Contains(netdev, "/") {
		if ok {
			all[id] = e
		}
		return
	}
	slaves := c.tree.Slaves(netdev)
	if master := c.tree.Master(netdev); len(slaves) == 0 && master != "" && strings.Contains(id.HCA, "bond") {
		slaves = c.tree.Slaves(master)
	}
	for _, slave := range slaves {
		one := e
		c.ethernet(slave, &one)
		all[PortID{id.HCA, id.Port, slave}] = one
	}
	if len(slaves) == 0 && (c.ethernet(netdev, &e) || ok) {
		all[id] = e
	}
}

// ethernet adds the counters of a network device.
func (c *Counters) ethernet(netdev string, e *PortCounters) bool {
	ok := c.numbers("class/net/"+netdev+"/", map[string]*int64{
		"carrier_down_count": &e.LinkDowns, "statistics/rx_crc_errors": &e.CRCErrors,
	})
	if c.live {
		e.FECErrors, e.Pauses = driverStatistics(netdev)
	}
	return ok
}

// numbers reads files, and reports whether any has a number.
func (c *Counters) numbers(dir string, files map[string]*int64) (ok bool) {
	for name, into := range files {
		n, err := strconv.ParseInt(c.tree.Text(dir+name), 10, 64)
		if err != nil || n < 0 {
			continue // Absent, or "N/A (no PMA)".
		}
		*into, ok = n, true
	}
	return ok
}
