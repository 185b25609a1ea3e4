// Package finding explains what is wrong with a machine, or only worth knowing,
// and what to do about it, in an operator's words.
//
// It is pure: it explains what a scan found, and neither reads hardware nor
// asks an API server.
package finding

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/discovery/gpu/vendors"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	// Problem needs action: doctor exits with 1.
	Problem Level = "problem"
	// Note explains what may surprise and is as it should be.
	Note Level = "note"
)

// Finding is one thing about a machine.
type Finding struct {
	Level Level `json:"level"`
	// Subject is what it is about: GPU 6, mlx5_3 port 1, probe nvml.
	Subject string `json:"subject"`
	Message string `json:"message"`
	// Remedy is what to do about it, empty for nothing.
	Remedy string `json:"remedy,omitempty"`
}

// Of explains a machine: problems first, else in the order of the machine.
// The roles of its HCAs are corrected; see [config.NodeConfig.WithRoles].
func Of(m *machine.Machine) []Finding {
	var all []Finding
	all = append(all, probes(m)...)
	all = append(all, skipped(m)...)
	all = append(all, gpus(m)...)
	all = append(all, hcas(m)...)
	all = append(all, stack(m)...)
	Sort(all)
	return all
}

// Sort puts problems first and keeps the order otherwise.
func Sort(all []Finding) {
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
}

func rank(l Level) int {
	if l == Problem {
		return 0
	}
	return 1
}

// Problems counts the findings that need action.
func Problems(all []Finding) int {
	n := 0
	for _, f := range all {
		if f.Level == Problem {
			n++
		}
	}
	return n
}

// Labels explains the labels that a machine should have and that cannot be
// made.
func Labels(missing []labels.Problem, c *config.NodeConfig) []Finding {
	all := make([]Finding, 0, len(missing))
	for _, p := range missing {
		f := Finding{Level: Problem, Subject: "label " + p.Key, Message: "cannot be made: " + p.Reason}
		if slices.ContainsFunc(c.Labels, func(r config.LabelRule) bool { return r.Key == p.Key }) {
			f.Remedy = "Correct the rule in the configuration."
		}
		all = append(all, f)
	}
	return all
}

// probes explains readers that did not read.
func probes(m *machine.Machine) []Finding {
	var all []Finding
	for _, p := range m.Probes {
		subject := "probe " + p.Name
		switch p.State {
		case machine.ProbeOK:
		case machine.ProbeFailed:
			all = append(all, Finding{Problem, subject, "failed: " + p.Reason, remedy(p.Name)})
		case machine.ProbeTimeout:
			all = append(all, Finding{
				Problem, subject, "did not answer: " + p.Reason + "; its values are those of its last good answer", remedy(p.Name),
			})
		case machine.ProbeAbsent:
			all = append(all, absent(m, p))
		}
	}
	return all
}

// absent is a problem only where the bus has what the missing reader reads.
func absent(m *machine.Machine, p machine.Probe) Finding {
	f := Finding{Note, "probe " + p.Name, "nothing to read: " + p.Reason, ""}
	for _, v := range vendors.All() {
		if on, _ := v.OnBus(m.PCI); v.Probe == p.Name && len(on) > 0 {
			f.Level, f.Remedy = Problem, v.Remedies.Driver
			f.Message = fmt.Sprintf("there is no driver for what is on the PCI bus (%s): %s",
				cli.Count(len(on), v.Name+" GPU"), p.Reason)
		}
	}
	return f
}

func remedy(probe string) string {
	for _, v := range vendors.All() {
		if v.Probe == probe {
			return v.Remedies.Driver
		}
	}
	switch probe {
	case "rdma":
		return "See that ib_core and the adapter's driver (mlx5_ib) are loaded: lsmod, dmesg."
	case "rdma-netlink":
		return "See that ib_core is loaded, and that this program is in the host's network namespace."
	}
	return "See that the path in the reason is mounted and readable: --sysfs-root, --proc-root."
}

// skipped explains devices that could not be read. A part of a device may be
// missing without harm, and is a problem all the same, because no part of it
// should fail. Devices that failed for one reason are one finding: a dead driver
// fails all GPUs.
func skipped(m *machine.Machine) []Finding {
	var reasons []string
	byReason := map[string][]string{}
	for _, s := range m.Skipped {
		if byReason[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		byReason[s.Reason] = append(byReason[s.Reason], s.Name)
	}
	var all []Finding
	for _, reason := range reasons {
		all = append(all, Finding{
			Problem, strings.Join(byReason[reason], ", "), "left out: " + reason,
			"See dmesg for the device; if it works, the dump (heddle inspect -o json) makes a good bug report.",
		})
	}
	return all
}
