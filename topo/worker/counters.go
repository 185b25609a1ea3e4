package worker

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/rdma"
)

// countedEvery is the least time between two writes of counters: a cable that
// fails counts without end, and each write is one for every watch of the API server.
const countedEvery = time.Hour

// counted returns the counters to report of a port: those that were reported until
// one of them has changed and the node's last write of any is old enough. Counters
// that start again at 0, with the driver, have changed too.
func (in *input) counted(r *v1alpha1.Rail) *v1alpha1.Counters {
	var before *v1alpha1.Counters
	due := true
	for i := range in.before.Rails {
		b := &in.before.Rails[i]
		if keyOf(b) == keyOf(r) {
			before = b.Counters
		}
		// A clock that was set back delays nothing for longer.
		if age := in.now.Sub(timeOf(b.Counters)); age >= 0 && age < countedEvery {
			due = false
		}
	}
	reading, ok := in.counters.Ports[portID(r)]
	now := reading.Counters
	var was v1alpha1.Counters
	if before != nil {
		was = *before
		was.BitErrorRate, was.Time = "", metav1.Time{}
	}
	if !ok || !due || now == was {
		return before
	}
	now.BitErrorRate = bitErrorRate(before, now.SymbolErrors, r.RateGbps, in.now)
	now.Time = metav1.NewTime(in.now.UTC().Truncate(time.Second))
	return &now
}

func portID(r *v1alpha1.Rail) rdma.PortID {
	return rdma.PortID{HCA: r.HCA, Port: int(r.Port), Netdev: r.Netdev}
}

// bitErrorRate computes the rate since an earlier reading, over a link with that many Gb/s; empty
// if it is 0 or not known.
func bitErrorRate(before *v1alpha1.Counters, errors int64, gbps int32, now time.Time) string {
	seconds := now.Sub(timeOf(before)).Seconds()
	if before == nil || errors <= before.SymbolErrors || gbps <= 0 || seconds <= 0 {
		return ""
	}
	return strconv.FormatFloat(float64(errors-before.SymbolErrors)/(float64(gbps)*1e9*seconds), 'e', 1, 64)
}

func timeOf(c *v1alpha1.Counters) time.Time {
	if c == nil {
		return time.Time{}
	}
	return c.Time.Time
}
