package quota

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
)

// memory is MiB, or percent of a GPU's memory; 0 and 0 is all of it. vmemory wins
// over the percentage, as in HAMi.
//
// An API server rewrites numbers: 1000 becomes 1k, 5000000 becomes 5M. So a suffix
// k counts as none, since no user means bytes by it. Of GiB, no user has 1M, and a
// decimal number of bytes that is implausibly small is rejected. Of MiB, 80,000 are
// 80k, so all decimal suffixes count as none. 0 of these is as none, as in HAMi.
func (p *parser) memory(names *config.Resources) (mib int64, percent int) {
	name := names.VMemory
	q, ok := p.limits[corev1.ResourceName(name)]
	if !ok || names.VMemoryUnit == config.MiB && q.IsZero() {
		return p.otherMemory(names)
	}
	if q.Sign() <= 0 {
		p.errorf("%s: invalid amount %s; without %s it is %s", name, p.text(name), name, p.defaultMemory(names))
		return 0, 0
	}
	switch {
	case names.VMemoryUnit == config.MiB && q.Format == resource.BinarySI:
		return p.bytes(name), 0
	case names.VMemoryUnit == config.MiB:
		return p.plain(name, config.MiB), 0
	case !hasUnit(q.String()):
		return p.plain(name, config.GiB), 0
	}
	if q.Format == resource.DecimalSI && q.CmpInt64(16<<20) < 0 {
		p.errorf("%s: %s is %d bytes; for GiB write a plain number, for less 512Mi", name, p.text(name), q.Value())
	}
	return p.bytes(name), 0
}

// plain returns a number without a unit, in MiB.
func (p *parser) plain(name string, unit config.MemoryUnit) int64 {
	mib := unit.InMiB()
	n, ok := whole(p.limits[corev1.ResourceName(name)], allocation.MaxMemoryMiB/mib)
	switch {
	case !ok && unit == config.GiB:
		p.errorf("%s: %s is not a whole number of GiB; write it with a unit, such as 512Mi", name, p.text(name))
	case !ok:
		p.errorf("%s: %s is not a whole number of %s", name, p.text(name), unit)
	case n > allocation.MaxMemoryMiB/mib:
		p.errorf("%s: %s %s is more than any GPU has; a plain number is %s", name, p.text(name), unit, unit)
	}
	return n * mib
}

// bytes returns a number of bytes in MiB, rounded up.
func (p *parser) bytes(name string) int64 {
	const unit = 1 << 20
	q := p.limits[corev1.ResourceName(name)]
	if q.CmpInt64(allocation.MaxMemoryMiB*unit) > 0 {
		p.errorf("%s: %s is more than any GPU has", name, p.text(name))
		return 0
	}
	return (q.Value() + unit - 1) / unit
}

// otherMemory returns the memory of a container without vmemory, like memory.
func (p *parser) otherMemory(names *config.Resources) (mib int64, percent int) {
	percent = p.defaults.VMemoryPercentage
	name := names.VMemoryPercentage
	if _, ok := p.limits[corev1.ResourceName(name)]; ok && name != "" {
		percent = p.percent(name, "without "+name+" it is "+p.defaultMemory(names),
			"a container has memory of each of its GPUs")
	} else if n := p.defaultMiB(names); n > 0 {
		return n, 0
	}
	if percent == Whole {
		return 0, 0
	}
	return 0, percent
}

// defaultMiB returns the configured amount of a container that requests no memory, or 0.
func (p *parser) defaultMiB(names *config.Resources) int64 {
	return min(int64(p.defaults.VMemory)*names.VMemoryUnit.InMiB(), allocation.MaxMemoryMiB)
}

// defaultMemory describes the memory of a container that requests none.
func (p *parser) defaultMemory(names *config.Resources) string {
	if n := p.defaultMiB(names); n > 0 {
		return fmt.Sprintf("%d MiB", n)
	}
	if n := p.defaults.VMemoryPercentage; n != Whole {
		return fmt.Sprintf("%d %% of the GPU's memory", n)
	}
	return "the GPU's whole memory"
}

// hasUnit reports whether a quantity has a suffix that means bytes. An exponent,
// a fraction's suffix and k do not.
func hasUnit(text string) bool {
	return strings.HasSuffix(text, "i") || strings.TrimRight(text, "MGTPE") != text
}

// What gib adds, in MiB, to round to a tenth of a GiB.
const (
	down    = 0
	nearest = 51
	up      = 102
)

// gib formats MiB as GiB. Free amounts round down and needed amounts up, so that a rejected request
// never shows equal amounts.
func gib(mib int64, round int64) string {
	tenths := (mib*10 + round*10) / 1024
	if tenths%10 == 0 {
		return strconv.FormatInt(tenths/10, 10)
	}
	return fmt.Sprintf("%d.%d", tenths/10, tenths%10)
}
