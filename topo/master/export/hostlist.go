package export

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Hostlist writes names in Slurm's short form, node[001-003,007],tux: names
// that differ in a number at their end only are one term. The number of digits
// is kept.
func Hostlist(names []string) string {
	sorted := slices.Clone(names)
	slices.SortFunc(sorted, compareHosts)
	var terms []string
	for i := 0; i < len(sorted); {
		prefix, _, ok := numbered(sorted[i])
		end := i + 1
		for ok && end < len(sorted) && sameSeries(sorted[i], sorted[end]) {
			end++
		}
		if end-i == 1 {
			terms = append(terms, sorted[i])
		} else {
			terms = append(terms, prefix+"["+ranges(sorted[i:end])+"]")
		}
		i = end
	}
	return strings.Join(terms, ",")
}

// maxDigits keeps numbers within an int.
const maxDigits = 9

// numbered splits a name into what is before the digits at its end and their
// text; false if there are none or too many.
func numbered(name string) (prefix, digits string, ok bool) {
	prefix = strings.TrimRight(name, "0123456789")
	digits = name[len(prefix):]
	return prefix, digits, digits != "" && len(digits) <= maxDigits
}

// sameSeries reports whether two names differ in their number only. Numbers
// without leading zeros may differ in length: tux[9-11].
func sameSeries(a, b string) bool {
	p, x, okA := numbered(a)
	q, y, okB := numbered(b)
	return okA && okB && p == q && (len(x) == len(y) || x[0] != '0' && y[0] != '0')
}

// compareHosts puts the names of a series next to each other, padded numbers of
// one width apart from the others.
func compareHosts(a, b string) int {
	p, x, okA := numbered(a)
	q, y, okB := numbered(b)
	if !okA {
		p, x = a, ""
	}
	if !okB {
		q, y = b, ""
	}
	return cmp.Or(
		strings.Compare(p, q), -cmp.Compare(padding(x), padding(y)), cmp.Compare(len(x), len(y)), strings.Compare(x, y),
	)
}

// padding is the width of a number with leading zeros, 0 for others.
func padding(digits string) int {
	if strings.HasPrefix(digits, "0") {
		return len(digits)
	}
	return 0
}

// ranges writes the numbers of a sorted series.
func ranges(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		_, first, _ := numbered(names[i])
		end := i + 1
		for end < len(names) && follows(names[end-1], names[end]) {
			end++
		}
		if end-i == 1 {
			out = append(out, first)
		} else {
			_, last, _ := numbered(names[end-1])
			out = append(out, fmt.Sprintf("%s-%s", first, last))
		}
		i = end
	}
	return strings.Join(out, ",")
}

func follows(a, b string) bool {
	_, x, _ := numbered(a)
	_, y, _ := numbered(b)
	m, errX := strconv.Atoi(x)
	n, errY := strconv.Atoi(y)
	return errX == nil && errY == nil && n == m+1
}
