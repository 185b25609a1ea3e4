package config

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// The types of this file have few values. The tag "enum" of a field lists those
// that it can have, for the checks of check.go and for docs/reference/configuration.md.

// Preset is a set of defaults.
type Preset string

// PresetScheme is the sGPU scheme of the field.
const PresetScheme Preset = "scheme"

// Mode is how GPUs are allocated.
type Mode string

// The modes.
const (
	ModeNative Mode = "native"
	ModeSGPU   Mode = "sgpu"
	// ModeClaims is Dynamic Resource Allocation: pods get GPUs by ResourceClaims.
	ModeClaims Mode = "claims"
)

// Enforcer enforces a limit.
type Enforcer string

// The enforcers; a compute limit has neither dmem nor evict.
const (
	// EnforceAuto is the strongest that works on the node.
	EnforceAuto Enforcer = "auto"
	// EnforceNone limits nothing: the share is counted only.
	EnforceNone Enforcer = "none"
	// EnforceDMem is the driver's memory limit per cgroup.
	EnforceDMem Enforcer = "dmem"
	// EnforcePreload is a library that the dynamic loader puts before the driver's.
	EnforcePreload Enforcer = "preload"
	// EnforceMPS is NVIDIA's Multi-Process Service, with one control daemon per GPU.
	EnforceMPS Enforcer = "mps"
	// EnforceEvict ends pods that have more memory than their share.
	EnforceEvict Enforcer = "evict"
)

// Advertise is which sGPU resources the kubelet receives.
type Advertise string

// What is advertised.
const (
	AdvertiseAuto Advertise = "auto"
	AdvertiseSGPU Advertise = "sgpu"
	AdvertiseAll  Advertise = "all"
)

// HAMi is whether HAMi's scheduler chooses the GPUs of shares.
type HAMi string

// Auto is decided by [NodeConfig.DetectHAMi], and off until then.
const (
	HAMiAuto HAMi = "auto"
	HAMiOn   HAMi = "true"
)

// Unscheduled is the treatment of sGPU containers without a GPU.
type Unscheduled string

// What happens to them.
const (
	UnscheduledPlace  Unscheduled = "place"
	UnscheduledReject Unscheduled = "reject"
)

// Placement is which GPU the node chooses for a share.
type Placement string

// The placements.
const (
	PlacementBinpack Placement = "binpack"
	PlacementSpread  Placement = "spread"
)

// QoSPolicy is the meaning of the compute limit of a share.
type QoSPolicy string

// The policies. All consumers of a GPU have the same policy at a time.
const (
	// FixedShare is a limit that holds even if the GPU is idle.
	FixedShare QoSPolicy = "fixed-share"
	// BurstShare is a guarantee. A consumer may exceed it while the GPU is idle.
	BurstShare QoSPolicy = "burst-share"
	// BestEffort has no limit. A requested vcore is counted nevertheless; a
	// missing one counts as 0.
	BestEffort QoSPolicy = "best-effort"
)

// MemoryUnit is the unit of a plain number of vmemory.
type MemoryUnit string

// The units.
const (
	GiB MemoryUnit = "GiB"
	MiB MemoryUnit = "MiB"
)

// InMiB returns how many MiB one of the unit is. Without a name it is a GiB. What is counted
// for the kubelet is GiB in any case; see [NodeConfig.AdvertisesShares].
func (u MemoryUnit) InMiB() int64 {
	if u == MiB {
		return 1
	}
	return 1024
}

// MIGStrategy is how MIG devices are named.
type MIGStrategy string

// The MIG strategies.
const (
	MIGNone   MIGStrategy = "none"
	MIGSingle MIGStrategy = "single"
	MIGMixed  MIGStrategy = "mixed"
)

// Count is how a request for n HCAs is served.
type Count string

// The ways to count HCAs.
const (
	CountDistinct Count = "distinct"
	CountStrict   Count = "strict"
	CountAll      Count = "all"
)

// Usage is the purpose of a node.
type Usage string

// Effect is a taint's.
type Effect string

// The effects, as Kubernetes spells them.
const (
	NoSchedule       Effect = "NoSchedule"
	PreferNoSchedule Effect = "PreferNoSchedule"
	NoExecute        Effect = "NoExecute"
)

// Conflict is the treatment of labels that another field manager owns.
type Conflict string

// What happens to them.
const (
	Yield Conflict = "yield"
	Force Conflict = "force"
)

// GPURef names a GPU by index ("3") or UUID ("GPU-…").
type GPURef string

// Check reports what is wrong with the name of a GPU.
func (c GPURef) Check() error {
	if strings.HasPrefix(string(c), "GPU-") && len(c) > len("GPU-") {
		return nil
	}
	if n, err := strconv.Atoi(string(c)); err != nil || n < 0 || strconv.Itoa(n) != string(c) {
		return fmt.Errorf("%q is neither an index such as 0 nor a UUID such as GPU-…", string(c))
	}
	return nil
}

// Names reports whether c is this GPU.
func (c GPURef) Names(g *machine.GPU) bool {
	return string(c) == g.UUID || string(c) == strconv.Itoa(g.Index)
}

// HexID is a PCI vendor or device number: four hexadecimal digits, with or
// without 0x.
type HexID string

// Check reports what is wrong with a number.
func (h HexID) Check() error {
	digits := strings.TrimPrefix(string(h), "0x")
	if _, err := strconv.ParseUint(digits, 16, 16); err != nil || len(digits) != 4 {
		return fmt.Errorf("invalid PCI number %q: want four hexadecimal digits, such as 15b3", string(h))
	}
	return nil
}

// matches reports whether sysfs' spelling ("0x15b3") is this number.
func (h HexID) matches(s string) bool {
	return strings.EqualFold(strings.TrimPrefix(string(h), "0x"), strings.TrimPrefix(s, "0x"))
}

// Glob is a pattern of [path.Match].
type Glob string

// Check reports what is wrong with a pattern.
func (g Glob) Check() error {
	if g == "" {
		return fmt.Errorf("empty name")
	}
	if _, err := path.Match(string(g), ""); err != nil {
		return fmt.Errorf("%q: %w", string(g), err)
	}
	return nil
}

// Match reports whether s matches the pattern.
func (g Glob) Match(s string) bool {
	ok, err := path.Match(string(g), s)
	return ok && err == nil
}
