package wellknown

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxCordoned is how many cards [CordonedGPUs] can name; a node has 16 or
	// less, and names of some that it had.
	MaxCordoned = 256
	// maxCardUUID is the longest UUID of a card, in bytes; the driver's are
	// GPU- and 36 characters.
	maxCardUUID = 96
)

// IsCardUUID tells whether s can be the UUID of a card, and stand in a comma
// list and in a device ID.
func IsCardUUID(s string) bool {
	return s != "" && len(s) <= maxCardUUID &&
		!strings.ContainsFunc(s, func(r rune) bool { return r != '-' && !alphanumeric(r) })
}

// ParseCordoned reads a value of [CordonedGPUs]: UUIDs, sorted, without
// repeats. The error names what is none; the others hold all the same.
func ParseCordoned(text string) ([]string, error) {
	if len(text) > MaxCordoned*(maxCardUUID+1) {
		return nil, fmt.Errorf("%s has %d bytes", CordonedGPUs, len(text))
	}
	uuids := []string{}
	var errs []error
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		switch {
		case word == "":
		case IsCardUUID(word):
			uuids = append(uuids, word)
		case len(errs) < 3:
			errs = append(errs, fmt.Errorf("%s: %.100q is no UUID of a card", CordonedGPUs, word))
		}
	}
	slices.Sort(uuids)
	uuids = slices.Compact(uuids)
	if n := len(uuids) - MaxCordoned; n > 0 {
		uuids = uuids[:MaxCordoned]
		errs = append(errs, fmt.Errorf("%s names %d cards too many", CordonedGPUs, n))
	}
	return uuids, errors.Join(errs...)
}

// FormatCordoned writes a value of [CordonedGPUs].
func FormatCordoned(uuids []string) string {
	sorted := slices.Sorted(slices.Values(uuids))
	return strings.Join(slices.Compact(sorted), ",")
}
