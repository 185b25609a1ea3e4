package health

import (
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/config"
)

// Remedy is the action that remediation takes on a node.
type Remedy struct {
	// Cordon is whether the Node is to be cordoned.
	Cordon bool
	// Faulty are the GPUs, by UUID and sorted, that have been unhealthy for long enough.
	Faulty []string
	// Message names every unhealthy GPU and what is wrong with it; empty without any.
	Message string
}

// RemedyOf decides that by the health of the GPUs and by whether the Node is cordoned now.
// A cordon outlives a restart, after which health is known since that alone.
func RemedyOf(p config.Remediation, now *Snapshot, cordoned bool, at time.Time) Remedy {
	var r Remedy
	var names, reasons []string
	stable := true
	for _, uuid := range slices.Sorted(maps.Keys(now.GPUs)) {
		state := now.GPUs[uuid]
		lasting := at.Sub(state.Since) >= p.After
		if state.Healthy {
			stable = stable && lasting
			continue
		}
		stable = false
		names, reasons = append(names, displayName("GPU", uuid, now.Machine)), append(reasons, state.Reason)
		if lasting {
			r.Faulty = append(r.Faulty, uuid)
		}
	}
	r.Message = describe(names, reasons)
	if p.Policy == config.RemediationNone {
		return Remedy{Message: r.Message}
	}
	r.Cordon = len(r.Faulty) > 0 || cordoned && !stable
	return r
}
