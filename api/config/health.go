package config

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Health is what makes a GPU or an HCA unfit for new pods, and when it is fit
// again. Running pods are never touched.
type Health struct {
	// Disable turns checks off: `all`; `xids`, the driver's error reports;
	// `ecc`, double-bit errors of memory; `recovery-action`, the driver's own
	// word that a GPU must be reset; `lost`, GPUs that are gone or do not
	// answer; `hcas`, ports, their subnet manager and rate; `rate`, a port
	// that is slower than it was or than its like. The list takes the part of
	// DP_DISABLE_HEALTHCHECKS in NVIDIA's device plugin.
	Disable []HealthCheck `yaml:"disable"`
	// XIDs change what single error reports of the GPU driver mean.
	XIDs XIDs `yaml:"xids"`
	// GPUSilentAfter is how long a GPU may leave NVML without an answer. A
	// GPU that NVML calls lost is unfit at once.
	GPUSilentAfter Duration `yaml:"gpuSilentAfter"`
	// GPURecoverAfter is how long a GPU must answer, and the driver ask for
	// no recovery action, until it is fit again.
	GPURecoverAfter Duration `yaml:"gpuRecoverAfter"`
	// HCADownAfter is how long an HCA must be without a good port until it is
	// unfit; `0s` is at once. A link that flaps faster counts as down.
	HCADownAfter Duration `yaml:"hcaDownAfter"`
	// HCAUpAfter is how long a port must be good until its HCA is fit again.
	HCAUpAfter Duration `yaml:"hcaUpAfter"`
}

// XIDs are lists of XID numbers, the codes of the GPU driver's error reports.
// A number that is in none of them means what NVIDIA's catalog says.
type XIDs struct {
	// Fatal are errors of the GPU: it is unfit until it has recovered.
	Fatal []XID `yaml:"fatal"`
	// Application are errors that end the process and leave the GPU fit. They
	// are logged and counted.
	Application []XID `yaml:"application"`
	// Ignore are reports that nobody needs to hear of.
	Ignore []XID `yaml:"ignore"`
}

// HealthCheck is one thing that is checked.
type HealthCheck string

// The checks.
const (
	CheckAll      HealthCheck = "all"
	CheckXIDs     HealthCheck = "xids"
	CheckECC      HealthCheck = "ecc"
	CheckRecovery HealthCheck = "recovery-action"
	CheckLost     HealthCheck = "lost"
	CheckHCAs     HealthCheck = "hcas"
	CheckRate     HealthCheck = "rate"
)

// Values lists the checks.
func (HealthCheck) Values() []string {
	return []string{"all", "xids", "ecc", "recovery-action", "lost", "hcas", "rate"}
}

// Checks tells whether a check is on.
func (h *Health) Checks(c HealthCheck) bool {
	return !slices.Contains(h.Disable, CheckAll) && !slices.Contains(h.Disable, c)
}

// XID is the number of an error report.
type XID string

// maxXID bounds the numbers; the catalog of 2026 ends below 200.
const maxXID = 9999

// Check tells what is wrong with a number.
func (x XID) Check() error {
	if n, err := strconv.Atoi(string(x)); err != nil || n < 1 || n > maxXID || strconv.Itoa(n) != string(x) {
		return fmt.Errorf("%q is no XID, a number such as 79", string(x))
	}
	return nil
}

// Is tells whether x is this number.
func (x XID) Is(n uint64) bool { return string(x) == strconv.FormatUint(n, 10) }

// Duration is a length of time as Go writes it: 30s, 1m30s.
type Duration string

// maxDuration bounds what is configured.
const maxDuration = time.Hour

// Check tells what is wrong with a duration.
func (d Duration) Check() error {
	if v, err := time.ParseDuration(string(d)); err != nil || v < 0 || v > maxDuration {
		return fmt.Errorf("%q is no duration from 0s to 1h, such as 30s", string(d))
	}
	return nil
}

// Value is the duration; 0 for what does not parse.
func (d Duration) Value() time.Duration {
	v, err := time.ParseDuration(string(d))
	if err != nil {
		return 0
	}
	return v
}

func defaultHealth() Health {
	return Health{GPUSilentAfter: "10s", GPURecoverAfter: "30s", HCADownAfter: "10s", HCAUpAfter: "30s"}
}

// health checks that no XID is in two places.
func (v *validator) health(x XIDs) {
	first := map[XID]string{}
	for _, list := range []struct {
		path string
		xids []XID
	}{
		{"health.xids.fatal", x.Fatal}, {"health.xids.application", x.Application}, {"health.xids.ignore", x.Ignore},
	} {
		for i, xid := range list.xids {
			at := fmt.Sprintf("%s[%d]", list.path, i)
			if other, twice := first[xid]; twice {
				v.addf(at, "%s is also %s", xid, other)
				continue
			}
			first[xid] = at
		}
	}
}
