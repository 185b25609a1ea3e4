package inspect

import (
	"strconv"
	"strings"
)

// ranges joins names with blanks, those that count on from one another as a
// range: GPU0-3 for four neighbors.
func ranges(names []string) string {
	var parts []string
	for i := 0; i < len(names); {
		prefix, first, ok := numbered(names[i])
		j := i + 1
		for ok && j < len(names) && names[j] == prefix+strconv.Itoa(first+j-i) {
			j++
		}
		if j-i < 3 {
			j = i + 1
			parts = append(parts, names[i])
		} else {
			parts = append(parts, names[i]+"-"+strconv.Itoa(first+j-i-1))
		}
		i = j
	}
	return strings.Join(parts, " ")
}

func numbered(name string) (prefix string, number int, ok bool) {
	prefix = strings.TrimRight(name, "0123456789")
	number, err := strconv.Atoi(name[len(prefix):])
	return prefix, number, err == nil && prefix+strconv.Itoa(number) == name
}
