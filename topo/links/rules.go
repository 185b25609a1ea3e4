package links

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// rule names a measure and has the hysteresis of its findings.
type rule struct {
	what, source string
	// need of the last of readings must be bad for a finding, and the last clear readings good to end it.
	need, of, clear int
	// rate is the most errors in a second, 0 for a limit by bit.
	rate float64
	// most is where the counter stops, by the kernel's PortCounters (drivers/infiniband/core/sysfs.c); 0 for a counter
	// of 64 bits.
	most int64
	// events are counted by readings with any, not by bit.
	events bool
}

// The sources of limits.
const (
	// The InfiniBand specification requires less than one bit error in 10^12 bits; so does IEEE 802.3 up to 100 Gb/s, and
	// fewer above.
	ibta, ieee = "IBTA", "IEEE 802.3"
	// Both ends of a PCIe link have the capabilities (PCI Express Base Specification, Link Capabilities Register).
	pcie = "PCIe, the lower of both ends"
	// A link that trains again in three readings of an hour is not one that was pulled.
	ours = "heddle"
	// Below 100 CRC errors a second NVLinks are as they should be (DCGM_LIMIT_MAX_NVLINK_CRC_ERROR in NVIDIA's
	// dcgm_gpu_hardware_limits.h).
	dcgm = "DCGM"
	// The driver calls an error fatal if the switch, and the GPUs behind it, need a reset (Fabric Manager for NVIDIA
	// NVSwitch Systems User Guide, SXid errors).
	driver = "NVSwitch driver"
)

// What is measured of a PCIe link.
const (
	pcieWidth = "pcie-width"
	pcieSpeed = "pcie-speed"
)

// FatalSXid and nonFatalSXid are the errors of a link of an NVSwitch.
const (
	FatalSXid    = "sxid-fatal"
	nonFatalSXid = "sxid-non-fatal"
)

// maxRatio is the highest ratio of errors to the bits of a link that is active, idle or not.
const maxRatio = 1e-12

// maxEvents is the highest number of readings with an event among the last ones of an event's rule.
const maxEvents = 2

// busy is the part of a link's rate at which its device counts as in use: an idle one may save power by a slower link.
const busy = 0.001

// rules returns all rules. Errors of packets are errors of at least one bit each.
func rules() []rule {
	ratio := func(what, source string, most int64) rule {
		return rule{what: what, source: source, need: 3, of: 3, clear: 6, most: most}
	}
	event := func(what string, most int64) rule {
		return rule{what: what, source: ours, need: maxEvents + 1, of: 12, clear: 12, most: most, events: true}
	}
	crc := ratio("nvlink-crc-errors", dcgm, 0)
	crc.rate = 100
	return []rule{
		crc, event("nvlink-replays", 0), event("nvlink-recoveries", 0), event("xgmi-errors", 0),
		ratio("symbol-errors", ibta, 1<<16-1), ratio("receive-errors", ibta, 1<<16-1),
		ratio("icrc-errors", ieee, 0), ratio("crc-errors", ieee, 0), ratio("fec-errors", ieee, 0),
		event("link-downs", 1<<8-1), event("link-error-recoveries", 1<<8-1),
		{what: pcieWidth, source: pcie, need: 3, of: 3, clear: 3},
		{what: pcieSpeed, source: pcie, need: 3, of: 3, clear: 3},
		{what: FatalSXid, source: driver, need: 1, of: 1, clear: 1},
		event(nonFatalSXid, 0),
	}
}

// PortErrors returns the errors in the counters of a port, nil without any.
func PortErrors(c *v1alpha1.Counters) machine.LinkErrors {
	if c == nil {
		return nil
	}
	return machine.LinkErrors{
		"symbol-errors": c.SymbolErrors, "receive-errors": c.ReceiveErrors, "icrc-errors": c.ICRCErrors,
		"crc-errors": c.CRCErrors, "fec-errors": c.FECErrors, "link-downs": c.LinkDowns,
		"link-error-recoveries": c.LinkErrorRecoveries,
	}
}

func ruleOf(what string) *rule {
	for _, r := range rules() {
		if r.what == what {
			return &r
		}
	}
	return nil
}

func (r *rule) window() uint16 { return 1<<r.of - 1 }

func (r *rule) begins(h *history) bool {
	return h.bad&1 != 0 && bits.OnesCount16(h.bad&r.window()) >= r.need
}

func (r *rule) ends(h *history) bool { return h.good&(1<<r.clear-1) == 1<<r.clear-1 }

// evidence is the value of a sample, of an event how often it was there.
func (s *sample) evidence(h *history) string {
	if s.events {
		often := fmt.Sprintf("in %d of %d readings", bits.OnesCount16(h.bad&s.window()), s.of)
		return strings.TrimPrefix(s.value+" "+often, " ")
	}
	return s.value
}

// samples judges a reading by the one before, taken some time earlier; known is false for the first of an end.
func samples(now, was *Reading, known bool, since time.Duration) (all []sample) {
	if now.Switch != nil {
		return switchSamples(now.Switch, was.Switch)
	}
	if now.Errors == nil {
		return pcieSamples(now, was, known, since)
	}
	if !known || since <= 0 {
		return nil
	}
	list := rules()
	for i := range list {
		r := &list[i]
		before, had := was.Errors[r.what]
		total, has := now.Errors[r.what]
		if !had || !has {
			continue
		}
		n := total - before
		if n < 0 { // The driver was loaded again, or the counters were cleared: all of them start again.
			return nil
		}
		s := sample{rule: r}
		switch {
		case n == 0 && r.most > 0 && total == r.most: // It counts no more.
		case r.events:
			s.level, s.limit = stateLevel(n > 0), r.often()
		case r.rate > 0:
			rate := float64(n) / since.Seconds()
			s.value, s.limit = perSecond(rate), perSecond(r.rate)
			s.level = rateLevel(rate, r.rate)
		case now.Active && now.RateGbps > 0:
			ratio := float64(n) / (float64(now.RateGbps) * 1e9 * since.Seconds())
			s.value, s.limit = perBit(ratio), perBit(maxRatio)
			s.level = rateLevel(ratio, maxRatio)
		}
		all = append(all, s)
	}
	return all
}

// switchSamples judges what the driver of an NVSwitch has reported. A fatal error is bad until the driver takes the
// switch again, since it needs a reset.
func switchSamples(now, was *machine.SwitchErrors) []sample {
	fatal, other := sample{rule: ruleOf(FatalSXid)}, sample{rule: ruleOf(nonFatalSXid)}
	fatal.level, fatal.value, fatal.limit = stateLevel(now.Fatal.Count > 0), now.Fatal.Text, "none"
	fatal.since = now.Fatal.Since
	other.value, other.limit = now.NonFatal.Text, other.often()
	if was != nil {
		other.level = stateLevel(now.NonFatal.Count > was.NonFatal.Count)
	}
	return []sample{fatal, other}
}

// often is the limit of an event.
func (r *rule) often() string { return fmt.Sprintf("in %d of %d readings", maxEvents, r.of) }

func perBit(ratio float64) string { return strconv.FormatFloat(ratio, 'e', 1, 64) + " per bit" }

func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'f', 0, 64) + " per second" }

// rateLevel is good up to a tenth of the limit.
func rateLevel(rate, limit float64) level {
	switch {
	case rate > limit:
		return bad
	case rate > limit/10:
		return fair
	}
	return good
}

// pcieSamples judges a PCIe link. The width is always that which was negotiated; the speed counts while the device is
// in use, since idle ones lower it.
func pcieSamples(now, was *Reading, known bool, since time.Duration) []sample {
	p := &now.PCIe
	width, speed := sample{rule: ruleOf(pcieWidth)}, sample{rule: ruleOf(pcieSpeed)}
	if p.Width > 0 && p.MaxWidth > 0 {
		width.level = stateLevel(p.Width < p.MaxWidth)
		width.value, width.limit = fmt.Sprintf("x%d", p.Width), fmt.Sprintf("x%d", p.MaxWidth)
	}
	moved := float64(now.Bytes-was.Bytes) * 8
	inUse := known && since > 0 && now.RateGbps > 0 && moved > busy*float64(now.RateGbps)*1e9*since.Seconds()
	if p.Speed > 0 && p.MaxSpeed > 0 && (inUse || p.Speed >= p.MaxSpeed) {
		speed.level = stateLevel(p.Speed < p.MaxSpeed)
		speed.value, speed.limit = fmt.Sprintf("%g GT/s", p.Speed), fmt.Sprintf("%g GT/s", p.MaxSpeed)
	}
	return []sample{width, speed}
}

func stateLevel(isBad bool) level {
	if isBad {
		return bad
	}
	return good
}

// Full names the counters that have stopped at their highest value and show nothing until they are cleared.
func Full(c *v1alpha1.Counters) (names []string) {
	all := PortErrors(c)
	for _, r := range rules() {
		if r.most > 0 && all[r.what] == r.most {
			names = append(names, r.what)
		}
	}
	return names
}
