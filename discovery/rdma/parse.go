package rdma

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// parseWords reads "4: ACTIVE" or "1: CA" and returns the words. An attribute
// without a number is its own words.
func parseWords(s string) string {
	number, words, ok := strings.Cut(s, ":")
	if _, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16); !ok || err != nil {
		return wellknown.Clip(strings.TrimSpace(s))
	}
	return wellknown.Clip(strings.TrimSpace(words))
}

// parseRate reads the number of "400 Gb/sec (4X NDR)", in 10^9 bits a second.
func parseRate(s string) (float64, error) {
	number, unit, ok := strings.Cut(s, " ")
	if !ok || !strings.HasPrefix(unit, "Gb/sec") {
		return 0, fmt.Errorf("invalid rate %q", wellknown.Clip(s))
	}
	gbps, err := strconv.ParseFloat(number, 64)
	if err != nil || !(gbps >= 0 && gbps < 1e6) {
		return 0, fmt.Errorf("invalid rate %q", wellknown.Clip(s))
	}
	return gbps, nil
}

// parseLID reads "0x40"; the kernel keeps 32 bits, and Omni-Path uses 24 of them.
func parseLID(s string) (int, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	n, err := strconv.ParseUint(digits, 16, 31)
	if !ok || err != nil {
		return 0, fmt.Errorf("invalid LID %q", wellknown.Clip(s))
	}
	return int(n), nil
}

// parseGUID checks four groups of four hexadecimal digits and returns them in
// lower case. A function without an identity has all zeroes: empty.
func parseGUID(s string) (string, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(b) != 8 {
		return "", fmt.Errorf("invalid GUID %q", wellknown.Clip(s))
	}
	guid := fmt.Sprintf("%x:%x:%x:%x", b[:2], b[2:4], b[4:6], b[6:])
	switch {
	case guid != strings.ToLower(s):
		return "", fmt.Errorf("invalid GUID %q", wellknown.Clip(s))
	case strings.Trim(guid, "0:") == "":
		return "", nil
	}
	return guid, nil
}

// parseGID reads a GID of eight groups and returns its upper half, the subnet's
// prefix, and its lower half, the port's GUID; both are empty for the all-zero
// GID of an unused entry.
func parseGID(s string) (prefix, guid string, err error) {
	const half = len("fe80:0000:0000:0000:")
	if len(s) != 2*half-1 {
		return "", "", fmt.Errorf("invalid GID %q", wellknown.Clip(s))
	}
	if guid, err = parseGUID(s[half:]); err != nil || guid == "" {
		return "", guid, err
	}
	prefix, err = parseGUID(s[:half-1])
	return prefix, guid, err
}
