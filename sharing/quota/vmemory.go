package quota

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/heddle-dev/heddle/api/allocation"
)

// memory is in MiB; 0 if there is no limit.
func (p *parser) memory(name string) int64 {
	q, ok := p.limits[corev1.ResourceName(name)]
	if !ok {
		return 0
	}
	const most, mib = allocation.MaxMemoryMiB, 1 << 20
	text := q.String()
	if q.Sign() <= 0 {
		p.errorf("%s: %s is no memory; without %s it is the GPU's whole memory", name, p.text(name), name)
		return 0
	}
	if !hasUnit(text) {
		n, ok := whole(q, most/1024)
		switch {
		case !ok:
			p.errorf("%s: %s is no whole number of GiB; write it with a unit, such as 512Mi", name, p.text(name))
		case n > most/1024:
			p.errorf("%s: %s GiB is more than any GPU has; a plain number is GiB", name, p.text(name))
		}
		return n * 1024
	}
	if q.CmpInt64(most*mib) > 0 {
		p.errorf("%s: %s is more than any GPU has", name, p.text(name))
		return 0
	}
	bytes := q.Value()
	if q.Format == resource.DecimalSI && bytes < 16*mib {
		p.errorf("%s: %s is %d bytes; for GiB write a plain number, for less 512Mi", name, p.text(name), bytes)
	}
	return (bytes + mib - 1) / mib
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

// gib writes MiB as GiB. What is left rounds down and what is needed up, so
// that the one always reads less than the other.
func gib(mib int64, round int64) string {
	tenths := (mib*10 + round*10) / 1024
	if tenths%10 == 0 {
		return strconv.FormatInt(tenths/10, 10)
	}
	return fmt.Sprintf("%d.%d", tenths/10, tenths%10)
}
