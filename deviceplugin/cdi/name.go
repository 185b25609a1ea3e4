// Package cdi writes the CDI specs that container runtimes read: the static one of
// the GPU driver (driver.go), and the devices of a container: one spec for each
// answer of Allocate, and /etc/heddle/devices.json. It also makes the names by
// which the container runtime finds the specs.
//
// A name is never used again: a runtime that has not seen its spec yet finds
// nothing and tries again, and never finds another container's devices. The
// package decides nothing about devices and keeps no state.
package cdi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// vendor is the part of heddle's CDI names before the slash.
const vendor = "heddle.dev"

// Kind is the class of a CDI name.
type Kind string

// The kinds of what a container is given.
const (
	GPU  Kind = "gpu"
	RDMA Kind = "rdma"
	SGPU Kind = "sgpu"
	// Claim is a device of a ResourceClaim.
	Claim Kind = "claim"
)

func kinds() []Kind { return []Kind{GPU, RDMA, SGPU, Claim} }

// Name is a CDI device: heddle.dev/<kind>=<device>.
type Name struct {
	Kind   Kind
	Device string
}

// A digest of the device IDs ties a name to what it was made for; the nonce
// makes it unique.
const (
	digestLength = 12
	nonceLength  = 16
)

// NewName makes a name that never was, such as
// heddle.dev/gpu=0123456789ab-0123456789abcdef.
func NewName(kind Kind, resource string, ids []string) Name {
	var nonce [nonceLength / 2]byte
	_, _ = rand.Read(nonce[:]) // Never fails: crypto/rand ends the process instead.
	return Name{kind, digest(resource, ids) + "-" + hex.EncodeToString(nonce[:])}
}

func digest(resource string, ids []string) string {
	sum := sha256.Sum256([]byte(resource + "\x00" + strings.Join(ids, "\x00")))
	return hex.EncodeToString(sum[:])[:digestLength]
}

// ParseName splits a CDI name of heddle; ok is false for any other. Names come
// back from the kubelet's checkpoint and become file names.
func ParseName(name string) (n Name, ok bool) {
	rest, ok := strings.CutPrefix(name, vendor+"/")
	if !ok {
		return Name{}, false
	}
	kind, device, ok := strings.Cut(rest, "=")
	n = Name{Kind(kind), device}
	if !ok || !IsDevice(device) || !slices.Contains(kinds(), n.Kind) {
		return Name{}, false
	}
	return n, true
}

// IsDevice reports whether a word looks like the device of a name.
func IsDevice(word string) bool {
	sum, nonce, _ := strings.Cut(word, "-")
	return len(sum) == digestLength && len(nonce) == nonceLength && strings.Trim(sum+nonce, "0123456789abcdef") == ""
}

// MadeFor reports whether the name was made for these device IDs, which are
// sorted.
func (n Name) MadeFor(resource string, ids []string) bool {
	return strings.HasPrefix(n.Device, digest(resource, ids))
}

// String returns the name as runtimes know it.
func (n Name) String() string { return vendor + "/" + string(n.Kind) + "=" + n.Device }
