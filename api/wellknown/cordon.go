package wellknown

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxCordoned bounds the GPUs in [CordonedGPUs]; a node has 16 or fewer, plus names of former
	// GPUs.
	MaxCordoned = 256
	// maxGPUUUID is the longest UUID of a GPU, in bytes; the driver's are
	// GPU- and 36 characters.
	maxGPUUUID = 96
)

// IsGPUUUID reports whether s can be the UUID of a GPU, and stand in a comma
// list and in a device ID.
func IsGPUUUID(s string) bool {
	return s != "" && len(s) <= maxGPUUUID &&
		!strings.ContainsFunc(s, func(r rune) bool { return r != '-' && !alphanumeric(r) })
}

// ParseCordoned reads a value of [CordonedGPUs]: UUIDs, sorted, without
// repeats. The error names invalid UUIDs; the others are valid nevertheless.
func ParseCordoned(text string) ([]string, error) {
	if len(text) > MaxCordoned*(maxGPUUUID+1) {
		return nil, fmt.Errorf("%s has %d bytes", CordonedGPUs, len(text))
	}
	uuids := []string{}
	var errs []error
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		switch {
		case word == "":
		case IsGPUUUID(word):
			uuids = append(uuids, word)
		case len(errs) < 3:
			errs = append(errs, fmt.Errorf("%s: invalid GPU UUID %.100q", CordonedGPUs, word))
		}
	}
	slices.Sort(uuids)
	uuids = slices.Compact(uuids)
	if n := len(uuids) - MaxCordoned; n > 0 {
		uuids = uuids[:MaxCordoned]
		errs = append(errs, fmt.Errorf("%s names %d GPUs too many", CordonedGPUs, n))
	}
	return uuids, errors.Join(errs...)
}

// FormatCordoned writes a value of [CordonedGPUs].
func FormatCordoned(uuids []string) string {
	sorted := slices.Sorted(slices.Values(uuids))
	return strings.Join(slices.Compact(sorted), ",")
}
