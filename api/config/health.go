package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
)

// Health defines when a GPU or an HCA is unhealthy for new pods, and when it is
// healthy again. Running pods are never touched, but by `remediation`.
type Health struct {
	// Disable turns checks off: `all`; `xids`, the driver's error reports;
	// `ecc`, errors of memory that cannot be corrected, by the driver's report
	// or a GPU's own counters (RAS); `recovery-action`, the driver's own
	// word that a GPU must be reset; `lost`, GPUs that are gone or do not
	// answer; `hcas`, ports, their subnet manager and rate; `rate`, a port
	// that is slower than it was or than its like. The list takes the part of
	// DP_DISABLE_HEALTHCHECKS in NVIDIA's device plugin.
	Disable []HealthCheck `yaml:"disable" enum:"all,xids,ecc,recovery-action,lost,hcas,rate"`
	// Codes change what single error reports of the GPU driver mean.
	Codes HealthCodes `yaml:"xids"`
	// DownAfter is how long a GPU may leave its driver without an answer, and how long an HCA must be without a good
	// port, until it is unhealthy; `0s` is at once. A link that flaps faster counts as down. A GPU that the driver
	// calls lost is unhealthy at once.
	DownAfter time.Duration `yaml:"downAfter" range:"0s-1h"`
	// UpAfter is how long a GPU must answer, and the driver ask for no recovery action, and how long a port must be
	// good, until the device is healthy again.
	UpAfter time.Duration `yaml:"upAfter" range:"0s-1h"`
	// Remediation is the reaction to a GPU that stays unhealthy.
	Remediation Remediation `yaml:"remediation"`
}

// Remediation is the reaction of heddle-device-plugin while a GPU of its Node stays
// unhealthy, which is not allocated in any case.
type Remediation struct {
	// Policy is `none`; `cordon`, the Node gets the taint
	// `heddle.dev/gpu-unhealthy:NoSchedule`; or `drain`, the pods that have the
	// GPU are evicted too, within PodDisruptionBudgets, if a controller makes
	// others in their place.
	Policy RemediationPolicy `yaml:"policy" enum:"none,cordon,drain"`
	// After is how long a GPU must be unhealthy before that is done, and how long
	// all must be healthy again before the taint is taken away.
	After time.Duration `yaml:"after" range:"0s-1h"`
}

// RemediationPolicy is how far remediation goes.
type RemediationPolicy string

// The policies.
const (
	RemediationNone   RemediationPolicy = "none"
	RemediationCordon RemediationPolicy = "cordon"
	RemediationDrain  RemediationPolicy = "drain"
)

// HealthCodes are lists of XID numbers, the codes of the GPU driver's error reports.
// A number that is in none of them has the meaning of NVIDIA's catalog.
type HealthCodes struct {
	// Fatal are errors of the GPU: it is unhealthy until it has recovered.
	Fatal []int `yaml:"fatal" range:"1-9999" unique:"true"`
	// Ignore are reports that leave the GPU healthy. heddle counts them and does not log them.
	Ignore []int `yaml:"ignore" range:"1-9999" unique:"true"`
}

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

// CodeKind is the kind of the error reports that Health.Codes is about.
const CodeKind = "XID"

// health checks that no number is in both lists.
func (v *validator) health(c HealthCodes) {
	for i, code := range c.Ignore {
		if at := slices.Index(c.Fatal, code); at >= 0 {
			v.addf(fmt.Sprintf("health.xids.ignore[%d]", i), "%d is also health.xids.fatal[%d]", code, at)
		}
	}
}
