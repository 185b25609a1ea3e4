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

// PortID names a port: mlx5_0, 1.
type PortID struct {
	HCA  string
	Port int
}

// Counters reads the error counters of all ports: those that mean harm to a cable, without the time
// and the rate; what a driver does not have is 0. They are not in a machine,
// since a machine that changes all the time would be published all the time.
type Counters struct {
	tree sysfs.FS
	last atomic.Pointer[map[PortID]v1alpha1.Counters]
}

// NewCounters reads below a root: /sys.
func NewCounters(root string) *Counters { return &Counters{tree: sysfs.New(root)} }

// countersEvery is how often counters are read: each file is a question to the
// adapter's firmware.
const countersEvery = 5 * time.Minute

// Run reads until ctx ends and returns nil. Firmware that never answers keeps the
// one reading waiting, and nothing else.
func (c *Counters) Run(ctx context.Context) error {
	var scan bounded.Call[struct{}]
	for ctx.Err() == nil {
		_, _ = scan.Do(ctx, func() (struct{}, error) {
			c.Scan()
			return struct{}{}, nil
		})
		notify.Sleep(ctx, countersEvery)
	}
	return nil
}

// Scan reads once.
func (c *Counters) Scan() {
	all := map[PortID]v1alpha1.Counters{}
	hcas, _ := c.tree.List(class) // Without the class no port has counters.
	for _, hca := range hcas {
		ports, _ := c.tree.List(class + "/" + hca + "/ports")
		for _, name := range ports {
			number, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if e, ok := c.port(class + "/" + hca + "/ports/" + name); ok {
				all[PortID{hca, number}] = e
			}
		}
	}
	c.last.Store(&all)
}

// Of returns the last reading of a port; false without one. A nil Counters has
// none.
func (c *Counters) Of(id PortID) (v1alpha1.Counters, bool) {
	if c == nil || c.last.Load() == nil {
		return v1alpha1.Counters{}, false
	}
	e, ok := (*c.last.Load())[id]
	return e, ok
}

// port reads ports/N/counters, and of Ethernet, which these do not count,
// the network device's.
func (c *Counters) port(dir string) (e v1alpha1.Counters, ok bool) {
	for name, into := range map[string]*int64{
		"counters/symbol_error": &e.SymbolErrors, "counters/link_downed": &e.LinkDowns,
		"counters/link_error_recovery": &e.LinkErrorRecoveries, "counters/port_rcv_errors": &e.ReceiveErrors,
		"hw_counters/rx_icrc_encapsulated": &e.ICRCErrors,
	} {
		ok = c.number(dir+"/"+name, into) || ok
	}
	if strings.TrimSpace(c.tree.Text(dir+"/link_layer")) == "Ethernet" {
		if netdev := c.tree.Text(dir + "/gid_attrs/ndevs/0"); netdev != "" && !strings.Contains(netdev, "/") {
			ok = c.number("class/net/"+netdev+"/carrier_down_count", &e.LinkDowns) || ok
		}
	}
	return e, ok
}

func (c *Counters) number(name string, into *int64) bool {
	n, err := strconv.ParseInt(c.tree.Text(name), 10, 64)
	if err != nil || n < 0 {
		return false // Absent, or "N/A (no PMA)".
	}
	*into = n
	return true
}
