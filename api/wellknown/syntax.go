package wellknown

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxLabel is the length in bytes of the longest label value, and of the
// longest key after its slash
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/).
const MaxLabel = validation.LabelValueMaxLength

// broken is the error of this file: the text, or the beginning of a long one,
// and the rules that it breaks; nil without any.
func broken(s string, rules ...string) error {
	if len(rules) == 0 {
		return nil
	}
	return fmt.Errorf("%.100q: %s", s, strings.Join(rules, "; "))
}

// CheckValue returns an error for an invalid label value. The empty value is valid.
func CheckValue(s string) error { return broken(s, validation.IsValidLabelValue(s)...) }

// CheckKey returns an error for an invalid label, taint or annotation key: an
// optional DNS domain and a slash, then a name.
func CheckKey(s string) error { return broken(s, validation.IsQualifiedName(s)...) }

// CheckResource returns an error for an invalid name of an extended resource. It needs a domain
// other than Kubernetes' domains.
func CheckResource(s string) error {
	domain, _, slash := strings.Cut(s, "/")
	switch {
	case !slash:
		return broken(s, "has no domain: write domain/name")
	case domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"):
		return broken(s, "is in a domain of Kubernetes' own")
	case strings.HasPrefix(s, "requests."):
		return broken(s, "begins with requests., which quotas keep for themselves")
	}
	return CheckKey(s)
}

// CheckDomain returns an error for an invalid DNS subdomain of RFC 1123.
func CheckDomain(s string) error { return broken(s, validation.IsDNS1123Subdomain(s)...) }

func alphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// Value makes a valid label value of any text as gpu-feature-discovery does:
// blanks become '-', other foreign characters go away. What is longer than
// [MaxLabel] is shortened by [Shorten].
func Value(s string) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case alphanumeric(r), strings.ContainsRune("-_.", r):
			return r
		}
		return -1
	}, s)
	return Shorten(strings.Trim(kept, "-_."), MaxLabel)
}

// Clip bounds what errors, logs and Events repeat of a text from outside: users
// and devices may have written any amount.
func Clip(s string) string { return ClipTo(s, 80) }

// ClipTo is s, or its first bytes and three dots, at most n together. n is 3 or
// more.
func ClipTo(s string, n int) string {
	const dots = "..."
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len(dots)], "") + dots
}

// Moment returns a time from outside in UTC, or the zero time if its year is not 0 to 9999: encoding/json
// writes no other, and the whole answer would be an error.
func Moment(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// Shorten cuts s to at most n bytes: in place of a part before its end stands a hash of the whole, so that equal
// texts stay equal and others apart. The end distinguishes most names: a MIG profile, a number. n is 10 or more.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	const separators = "-_."
	sum := sha256.Sum256([]byte(s))
	room := n - len("-12345678")
	end := s[len(s)-room*2/5:]
	end = strings.TrimRight(end[max(strings.IndexAny(end, separators), 0):], separators)
	if end != "" && !strings.ContainsAny(end[:1], separators) {
		end = "-" + end[1:]
	}
	return strings.TrimRight(s[:room-len(end)], separators) + "-" + hex.EncodeToString(sum[:4]) + end
}
