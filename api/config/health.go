package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
)

// Health defines when a GPU or an HCA is unhealthy for new pods, and when it is healthy again. Only `remediation`
// affects running pods.
type Health struct {
	// Disable disables checks: `all`; `xids`, the driver's error reports; `ecc`, uncorrectable memory errors,
	// by the driver's report or a GPU's own counters (RAS); `recovery-action`, the driver's request for a
	// reset; `lost`, GPUs that are gone or do not answer; `hcas`, ports, their subnet manager and rate; `rate`,
	// a port slower than before or than similar ones. It replaces DP_DISABLE_HEALTHCHECKS of NVIDIA's device
	// plugin.
	Disable []HealthCheck `yaml:"disable" enum:"all,xids,ecc,recovery-action,lost,hcas,rate"`
	// FatalXIDs are XIDs that make the GPU unhealthy until it recovers. A number in neither list has the
	// meaning of NVIDIA's catalog.
	FatalXIDs []int `yaml:"fatalXIDs" range:"1-9999" unique:"true"`
	// IgnoreXIDs are XIDs that leave the GPU healthy. heddle counts them and does not log them.
	IgnoreXIDs []int `yaml:"ignoreXIDs" range:"1-9999" unique:"true"`
	// DownAfter is the time without an answer from a GPU, or without a good port of an HCA, after which the
	// device is unhealthy; `0s` means at once. A link that flaps faster counts as down. A GPU that the driver
	// calls lost is unhealthy at once.
	DownAfter time.Duration `yaml:"downAfter" range:"0s-1h"`
	// UpAfter is the time for which a GPU must answer without a recovery action, or a port must be good, until
	// the device is healthy again.
	UpAfter time.Duration `yaml:"upAfter" range:"0s-1h"`
	// Remediation is the reaction to a GPU that stays unhealthy: `none`; `cordon` sets the taint
	// `heddle.dev/gpu-unhealthy:NoSchedule` on the Node; `drain` also evicts the GPU's pods within
	// PodDisruptionBudgets, if a controller recreates them.
	Remediation RemediationPolicy `yaml:"remediation" enum:"none,cordon,drain"`
	// RemediateAfter is the time for which a GPU must be unhealthy before the remediation, and all GPUs healthy
	// before it ends.
	RemediateAfter time.Duration `yaml:"remediateAfter" range:"0s-1h"`
	// MaxWithdrawnPercent is the part of the nodes with GPUs that may be withdrawn at a time because they reject
	// pod after pod; one node always may. `0` withdraws none.
	MaxWithdrawnPercent int `yaml:"maxWithdrawnPercent" range:"0-100"`
	// ProbeAfter is the time after which a withdrawn node gets one pod as a probe. It doubles with each probe
	// that fails, up to an hour.
	ProbeAfter time.Duration `yaml:"probeAfter" range:"1s-1h"`
}

// RemediationPolicy is how far remediation goes.
type RemediationPolicy string

// The policies.
const (
	RemediationNone   RemediationPolicy = "none"
	RemediationCordon RemediationPolicy = "cordon"
	RemediationDrain  RemediationPolicy = "drain"
)

// HealthCheck is one thing that is checked.
type HealthCheck string

// The checks.
const (
	CheckAll      HealthCheck = "all"
	CheckCodes    HealthCheck = "xids"
	CheckECC      HealthCheck = "ecc"
	CheckRecovery HealthCheck = "recovery-action"
	CheckLost     HealthCheck = "lost"
	CheckHCAs     HealthCheck = "hcas"
	CheckRate     HealthCheck = "rate"
)

// Checks reports whether a check is on.
func (h *Health) Checks(c HealthCheck) bool {
	return !slices.Contains(h.Disable, CheckAll) && !slices.Contains(h.Disable, c)
}

// Fault returns why a GPU that its scan found unhealthy or lost cannot be allocated. It is empty
// for a healthy one, and for one with uncorrectable errors where their check is off.
func (h *Health) Fault(found machine.Health) string {
	if found.Cause == machine.UncorrectableErrors && !h.Checks(CheckECC) {
		return ""
	}
	return found.String()
}

// CodeKind is the kind of the error reports that Health.FatalXIDs and Health.IgnoreXIDs are about.
const CodeKind = "XID"

// health checks that no number is in both lists.
func (v *validator) health(h *Health) {
	for i, code := range h.IgnoreXIDs {
		if at := slices.Index(h.FatalXIDs, code); at >= 0 {
			v.addf(fmt.Sprintf("health.ignoreXIDs[%d]", i), "%d is also health.fatalXIDs[%d]", code, at)
		}
	}
}
