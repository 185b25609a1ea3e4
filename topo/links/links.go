// Package links decides which ends of links are degraded, from readings over time.
//
// It owns the limits, where they come from, and the hysteresis: no finding follows from one reading, none from counters
// that start again, and one ends only after several good readings. It reads no hardware and no clock.
package links

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// End is one end of a link.
type End struct {
	// HCA is the RDMA device's name, empty for a GPU and an NVSwitch. ID is the HCA's identity, the GPU's UUID or the PCI
	// address of an NVSwitch.
	HCA, ID string
	// Port is 0 for the PCIe link of a device.
	Port int32
	// Netdev is the slave under a LAG.
	Netdev string
	// Link is a link of a GPU to others: NVLink 3; or of an NVSwitch: NVSwitch link 46.
	Link string
	// Side is [v1alpha1.SwitchEnd] for the switch's port, empty for the node's.
	Side string
}

// Reading has the counters and the PCIe link of an end at one time.
type Reading struct {
	End
	// Active is set if the link is up: a link that is down shows no errors.
	Active bool
	// RateGbps is the link's, in 10^9 bits a second; 0 if unknown.
	RateGbps int32
	// Errors has the errors of a port or of a link between GPUs, Switch the errors of a link of an NVSwitch, which is
	// known from its first error on; each is absent for other links.
	Errors machine.LinkErrors
	Switch *machine.SwitchErrors
	// Bytes is the number of bytes that the port, or all ports of the device, have moved in both directions.
	Bytes int64
	// PCIe is the link between the device and the port above it, absent for a port.
	PCIe PCIe
}

// PCIe is the state of a PCIe link, and what both of its ends are capable of. Speeds are in GT/s, widths in lanes;
// 0 is unknown.
type PCIe struct {
	Speed, MaxSpeed float64
	Width, MaxWidth int
}

// level is the result of one measure in one reading.
type level uint8

const (
	// unknown says nothing: the history stays as it is.
	unknown level = iota
	good
	// fair is above the lower limit and not above the upper one: it begins no finding and ends none.
	fair
	bad
)

// sample is one measure in one reading.
type sample struct {
	*rule
	level        level
	value, limit string
	// since is when it became bad; zero for the time of the last reading.
	since time.Time
}

// key is one measure of one end.
type key struct {
	End
	what string
}

// history has the results of a measure, the newest in the lowest bit.
type history struct {
	rule      *rule
	bad, good uint16
	// since is the start of the first bad reading in bad.
	since time.Time
	// finding is set while there is one.
	finding *v1alpha1.DegradedLink
}

// Tracker remembers readings.
type Tracker struct {
	at    time.Time
	last  map[End]Reading
	known map[key]*history
}

// New returns a tracker that goes on with the findings of an earlier one.
func New(findings []v1alpha1.DegradedLink) *Tracker {
	t := &Tracker{last: map[End]Reading{}, known: map[key]*history{}}
	for i := range findings {
		f := findings[i]
		if r := ruleOf(f.What); r != nil {
			t.known[key{End{f.HCA, f.ID, f.Port, f.Netdev, f.Link, f.End}, f.What}] = &history{rule: r, finding: &f}
		}
	}
	return t
}

// Add adds the readings of all ends at a time after the last ones. An end that is gone counts as good.
func (t *Tracker) Add(at time.Time, readings []Reading) {
	now := make(map[End]Reading, len(readings))
	seen := map[key]bool{}
	for _, r := range readings {
		now[r.End] = r
		was, ok := t.last[r.End]
		if !ok && !t.at.IsZero() {
			was.Switch = &machine.SwitchErrors{} // There were none.
		}
		for _, s := range samples(&r, &was, ok, at.Sub(t.at)) {
			k := key{r.End, s.what}
			seen[k] = true
			t.add(k, at, &s)
		}
	}
	for k, h := range t.known {
		if _, there := now[k.End]; !there {
			t.add(k, at, &sample{rule: h.rule, level: good})
		} else if !seen[k] && h.finding == nil {
			delete(t.known, k)
		}
	}
	t.at, t.last = at, now
}

func (t *Tracker) add(k key, at time.Time, s *sample) {
	h := t.known[k]
	if h == nil {
		if s.level != bad {
			return // Nothing to remember.
		}
		h = &history{rule: s.rule}
		t.known[k] = h
	}
	if s.level == unknown {
		return
	}
	h.bad, h.good = h.bad<<1, h.good<<1
	if s.level == good {
		h.good |= 1
	}
	if s.level == bad {
		if h.bad&s.window() == 0 {
			h.since = cmp.Or(s.since, t.at, at)
		}
		h.bad |= 1
	}
	if value := s.evidence(h); h.finding != nil && value != "" {
		h.finding.Value, h.finding.Time = value, whole(at)
	}
	switch {
	case h.finding == nil && s.begins(h):
		h.finding = &v1alpha1.DegradedLink{
			HCA: k.HCA, ID: k.ID, Port: k.Port, Netdev: k.Netdev, Link: k.Link, End: k.Side, What: k.what,
			Value: s.evidence(h), Limit: s.limit, Source: s.source, Since: whole(h.since), Time: whole(at),
		}
	case s.ends(h):
		delete(t.known, k)
	}
}

// whole rounds as the API server keeps times.
func whole(at time.Time) metav1.Time { return metav1.NewTime(at.UTC().Truncate(time.Second)) }

// maxFindings is the bound of a NodeTopology.
const maxFindings = 64

// Findings returns the links that are degraded, sorted by ID, port, netdev, link, end and measure.
func (t *Tracker) Findings() (all []v1alpha1.DegradedLink) {
	for _, h := range t.known {
		if h.finding != nil {
			all = append(all, *h.finding)
		}
	}
	slices.SortFunc(all, compare)
	return all[:min(len(all), maxFindings)]
}

func compare(a, b v1alpha1.DegradedLink) int {
	return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Port, b.Port), strings.Compare(a.Netdev, b.Netdev),
		machine.CompareNames(a.Link, b.Link), strings.Compare(a.End, b.End), strings.Compare(a.What, b.What),
		strings.Compare(a.HCA, b.HCA))
}

// Same reports whether two lists are of the same measures of the same ends, with whatever values.
func Same(a, b []v1alpha1.DegradedLink) bool {
	return slices.EqualFunc(a, b, func(a, b v1alpha1.DegradedLink) bool { return compare(a, b) == 0 })
}
