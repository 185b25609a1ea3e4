package export

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// host is a name and the number at its end, if it has one: padding is how many
// digits a number with leading zeros has, 0 for others.
type host struct {
	name, prefix    string
	number, padding int
	numbered        bool
}

// maxDigits keeps numbers within an int.
const maxDigits = 9

func hostOf(name string) host {
	h := host{name: name, prefix: strings.TrimRight(name, "0123456789")}
	digits := name[len(h.prefix):]
	number, err := strconv.Atoi(digits)
	if err != nil || len(digits) > maxDigits {
		h.prefix = name
		return h
	}
	h.number, h.numbered = number, true
	if digits[0] == '0' {
		h.padding = len(digits)
	}
	return h
}

// digits is the number as it stands in the name.
func (h *host) digits() string { return h.name[len(h.prefix):] }

// Hostlist writes names in Slurm's short form, node[001-003,007],tux: names
// that differ in a number at their end only are one term. The number of digits
// is kept.
func Hostlist(names []string) string {
	hosts := make([]host, len(names))
	for i, name := range names {
		hosts[i] = hostOf(name)
	}
	slices.SortFunc(hosts, func(a, b host) int {
		return cmp.Or(
			strings.Compare(a.prefix, b.prefix), -cmp.Compare(a.padding, b.padding), cmp.Compare(a.number, b.number),
			strings.Compare(a.name, b.name),
		)
	})
	var terms []string
	for len(hosts) > 0 {
		n := 1
		for n < len(hosts) && sameSeries(&hosts[0], &hosts[n]) {
			n++
		}
		if n == 1 {
			terms = append(terms, hosts[0].name)
		} else {
			terms = append(terms, hosts[0].prefix+"["+ranges(hosts[:n])+"]")
		}
		hosts = hosts[n:]
	}
	return strings.Join(terms, ",")
}

// sameSeries reports whether two names differ in their number only. Of numbers
// with leading zeros the widths are equal: n[009-010].
func sameSeries(a, b *host) bool {
	return a.numbered && b.numbered && a.prefix == b.prefix &&
		(a.padding == b.padding || len(a.digits()) == len(b.digits()))
}

// ranges writes the numbers of a sorted series.
func ranges(hosts []host) string {
	var out []string
	for len(hosts) > 0 {
		n := 1
		for n < len(hosts) && hosts[n].number == hosts[n-1].number+1 {
			n++
		}
		text := hosts[0].digits()
		if n > 1 {
			text = fmt.Sprintf("%s-%s", text, hosts[n-1].digits())
		}
		out = append(out, text)
		hosts = hosts[n:]
	}
	return strings.Join(out, ",")
}
