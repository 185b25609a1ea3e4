package informers

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// ID stands for an object's UID.
type ID [16]byte

// IDOf is zero for no UID.
func IDOf(uid string) ID {
	if uid == "" {
		return ID{}
	}
	sum := sha256.Sum256([]byte(uid))
	return ID(sum[:len(ID{})])
}

// guid is a GUID as a report spells it. As sysfs does, 946d:ae03:00e5:a3c0, it
// is a number.
type guid struct {
	number uint64
	odd    *string // Any other spelling.
}

func guidOf(text string) guid {
	plain := strings.ReplaceAll(text, ":", "")
	b, err := hex.DecodeString(plain)
	if err == nil && len(b) == 8 {
		var g guid
		for _, v := range b {
			g.number = g.number<<8 | uint64(v)
		}
		if g.String() == text {
			return g
		}
	}
	if text == "" {
		return guid{}
	}
	return guid{odd: &text}
}

// String is the GUID as it came.
func (g guid) String() string {
	switch {
	case g.odd != nil:
		return *g.odd
	case g.number == 0:
		return ""
	}
	const digits = "0123456789abcdef"
	b := make([]byte, 0, len("946d:ae03:00e5:a3c0"))
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[g.number>>shift&0xf])
		if shift%16 == 0 && shift > 0 {
			b = append(b, ':')
		}
	}
	return string(b)
}

// words gives equal strings one place in memory: most objects carry the same
// few. It is for one goroutine.
type words map[string]string

// maxWords bounds the memory. Beyond it, equal strings are found again only
// among newer ones.
const maxWords = 1 << 16

func (w words) one(s string) string {
	if known, ok := w[s]; ok {
		return known
	}
	if len(w) >= maxWords {
		clear(w)
	}
	w[s] = s
	return s
}

// one is the one copy of a value.
func one[T comparable](known map[T]*T, v T) *T {
	if p := known[v]; p != nil {
		return p
	}
	if len(known) >= maxWords {
		clear(known)
	}
	known[v] = new(v)
	return known[v]
}
