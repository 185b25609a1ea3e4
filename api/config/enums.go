package config

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// The types of this file have few values. Values lists them, for the checks of
// decode.go and for docs/configuration.md.

// Preset is a set of defaults.
type Preset string

// The presets.
const (
	PresetNone   Preset = ""
	PresetScheme Preset = "scheme"
)

// Values lists the presets.
func (Preset) Values() []string { return []string{"", "scheme"} }

// Mode is how GPUs are handed out.
type Mode string

// The modes.
const (
	ModeNative Mode = "native"
	ModeSGPU   Mode = "sgpu"
)

// Values lists the modes.
func (Mode) Values() []string { return []string{"native", "sgpu"} }

// MemoryEnforcer is what makes a memory limit hold.
type MemoryEnforcer string

// The memory enforcers.
const (
	MemoryAuto    MemoryEnforcer = "auto"
	MemoryNone    MemoryEnforcer = "none"
	MemoryDmem    MemoryEnforcer = "dmem"
	MemoryPreload MemoryEnforcer = "preload"
	MemoryMPS     MemoryEnforcer = "mps"
)

// Values lists the memory enforcers.
func (MemoryEnforcer) Values() []string { return []string{"auto", "none", "dmem", "preload", "mps"} }

// ComputeEnforcer is what makes a compute limit hold.
type ComputeEnforcer string

// The compute enforcers.
const (
	ComputeAuto    ComputeEnforcer = "auto"
	ComputeNone    ComputeEnforcer = "none"
	ComputeMPS     ComputeEnforcer = "mps"
	ComputePreload ComputeEnforcer = "preload"
)

// Values lists the compute enforcers.
func (ComputeEnforcer) Values() []string { return []string{"auto", "none", "mps", "preload"} }

// Advertise is which sGPU resources the kubelet receives.
type Advertise string

// What is advertised.
const (
	AdvertiseAuto Advertise = "auto"
	AdvertiseSGPU Advertise = "sgpu"
	AdvertiseAll  Advertise = "all"
)

// Values lists what can be advertised.
func (Advertise) Values() []string { return []string{"auto", "sgpu", "all"} }

// Unscheduled is what happens to sGPU containers without a GPU.
type Unscheduled string

// What happens to them.
const (
	UnscheduledPlace  Unscheduled = "place"
	UnscheduledReject Unscheduled = "reject"
)

// Values lists what can happen.
func (Unscheduled) Values() []string { return []string{"place", "reject"} }

// Placement is which GPU the node chooses for a share.
type Placement string

// The placements.
const (
	PlacementBinpack Placement = "binpack"
	PlacementSpread  Placement = "spread"
)

// Values lists the placements.
func (Placement) Values() []string { return []string{"binpack", "spread"} }

// ModeSwitch is what a change of mode does with a GPU in use.
type ModeSwitch string

// What it does.
const (
	ModeSwitchCordon ModeSwitch = "cordon-card"
	ModeSwitchWait   ModeSwitch = "wait"
)

// Values lists what it can do.
func (ModeSwitch) Values() []string { return []string{"cordon-card", "wait"} }

// MIGStrategy is what MIG devices are called.
type MIGStrategy string

// The MIG strategies.
const (
	MIGNone   MIGStrategy = "none"
	MIGSingle MIGStrategy = "single"
	MIGMixed  MIGStrategy = "mixed"
)

// Values lists the MIG strategies.
func (MIGStrategy) Values() []string { return []string{"none", "single", "mixed"} }

// Count is what a pod gets that asks for n HCAs.
type Count string

// The ways to count HCAs.
const (
	CountDistinct Count = "distinct"
	CountStrict   Count = "strict"
	CountAll      Count = "all"
)

// Values lists the ways to count.
func (Count) Values() []string { return []string{"distinct", "strict", "all"} }

// LinkType is the kind of a network device, as the kernel's tools spell it.
type LinkType string

// Values lists the link types.
func (LinkType) Values() []string { return []string{"ether", "infiniband"} }

// LinkLayer is the link layer of a port.
type LinkLayer string

// Values lists the link layers.
func (LinkLayer) Values() []string { return []string{"infiniband", "ethernet"} }

// RoleName is a [machine.Role] that a selector can name.
type RoleName machine.Role

// Values lists the roles.
func (RoleName) Values() []string { return []string{"fabric", "storage", "management", "virtual"} }

// Usage is what a node is for.
type Usage string

// The usages.
const (
	UsageUnset     Usage = ""
	UsageInference Usage = "inference"
	UsageTraining  Usage = "training"
	UsageHybrid    Usage = "hybrid"
)

// Values lists the usages.
func (Usage) Values() []string { return []string{"", "inference", "training", "hybrid"} }

// Effect is a taint's.
type Effect string

// The effects, as Kubernetes spells them.
const (
	NoSchedule       Effect = "NoSchedule"
	PreferNoSchedule Effect = "PreferNoSchedule"
	NoExecute        Effect = "NoExecute"
)

// Values lists the effects.
func (Effect) Values() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

// Conflict is what happens to labels that another field manager owns.
type Conflict string

// What happens to them.
const (
	Yield Conflict = "yield"
	Force Conflict = "force"
)

// Values lists what can happen.
func (Conflict) Values() []string { return []string{"yield", "force"} }

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
		return fmt.Errorf("%q is no PCI number of four hexadecimal digits, such as 15b3", string(h))
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
