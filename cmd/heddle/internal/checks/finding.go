// Package checks holds the checks of a machine for `heddle doctor` and `heddle inspect`: faults,
// notes and remedies, in an operator's words. Package doctor checks the Node and heddle's daemons.
//
// It is pure: it explains what a scan found, and neither reads hardware nor
// asks an API server.
package checks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	// Problem needs action: doctor exits with 1.
	Problem Level = "problem"
	// Note explains what may surprise and is as it should be.
	Note Level = "note"
)

// Finding describes one result of a check.
type Finding struct {
	Level Level `json:"level"`
	// Subject is the device or part: GPU 6, mlx5_3 port 1, probe nvml.
	Subject string `json:"subject"`
	Message string `json:"message"`
	// Remedy is the recommended action, or empty.
	Remedy string `json:"remedy,omitempty"`
}

// List collects findings.
type List []Finding

// Problem adds a finding that needs action. remedy may be empty.
func (l *List) Problem(subject, remedy, format string, args ...any) {
	*l = append(*l, Finding{Problem, subject, fmt.Sprintf(format, args...), remedy})
}

// Note adds a finding that needs no action.
func (l *List) Note(subject, remedy, format string, args ...any) {
	*l = append(*l, Finding{Note, subject, fmt.Sprintf(format, args...), remedy})
}

// Sorted puts problems first and keeps the order otherwise. It also counts them.
// It is never nil: an object has an empty list.
func (l *List) Sorted() (all List, problems int) {
	all = List{}
	for _, f := range *l {
		if f.Level == Problem {
			all = slices.Insert(all, problems, f)
			problems++
		} else {
			all = append(all, f)
		}
	}
	return all, problems
}

// Machine explains a machine, in its order. The roles of its HCAs are corrected;
// see [config.NodeConfig.WithRoles].
func (l *List) Machine(m *machine.Machine) {
	for _, p := range m.Probes {
		l.probe(m, p)
	}
	l.skipped(m)
	l.excused(m)
	l.gpus(m)
	l.hcas(m)
	l.adapters(m)
	l.accelerators(m)
	l.stack(m)
}

// NotServed explains GPUs of a maker that the node's resources are not of.
func (l *List) NotServed(m *machine.Machine, c *config.NodeConfig) {
	for i := range m.GPUs {
		if reason := c.NotServed(m, &m.GPUs[i]); reason != "" {
			l.Note("GPU "+m.GPUs[i].PCI, "", "%s: no pod gets it", reason)
		}
	}
}

// Labels explains the labels that a machine should have and that cannot be
// made.
func (l *List) Labels(missing []labels.Problem, c *config.NodeConfig) {
	for _, p := range missing {
		remedy := ""
		if slices.ContainsFunc(c.Labels, func(r config.LabelRule) bool { return r.Key == p.Key }) {
			remedy = "Correct the rule in the configuration."
		}
		l.Problem("label "+p.Key, remedy, "cannot be made: %s", p.Reason)
	}
}

// probe explains a reader that failed. An absent driver is a problem only if the bus has devices
// for it.
func (l *List) probe(m *machine.Machine, p machine.Probe) {
	remedy := "See that the path in the reason is mounted and readable: --sysfs-root, --proc-root."
	subject, present, others, own := "probe "+p.Name, "", "", false
	switch p.Name {
	case "rdma":
		remedy = "See that ib_core and the adapter's driver (mlx5_ib) are loaded: lsmod, dmesg."
	case "rdma-netlink":
		remedy = "See that ib_core is loaded, and that this program is in the host's network namespace."
	}
	for _, v := range host.Vendors() {
		if v.Probe != p.Name {
			if len(v.OnBus(m.PCI)) > 0 {
				others = v.Name
			}
			continue
		}
		own = true
		remedy = v.Remedies.Driver
		if on := v.OnBus(m.PCI); len(on) > 0 {
			present = cli.Count(len(on), v.Name+" GPU")
		}
	}
	switch {
	case p.State == machine.ProbeFailed:
		l.Problem(subject, remedy, "failed: %s", p.Reason)
	case p.State == machine.ProbeTimeout:
		l.Problem(subject, remedy, "did not answer: %s; its values are from its last good answer", p.Reason)
	case p.State == machine.ProbeAbsent && present != "":
		l.Problem(subject, remedy, "the driver is missing for devices on the PCI bus (%s): %s", present, p.Reason)
	case p.State == machine.ProbeAbsent && own && others != "":
		// The node has GPUs of another maker, and needs no driver of this one.
	case p.State == machine.ProbeAbsent:
		l.Note(subject, "", "nothing to read: %s", p.Reason)
	}
}

// excused explains GPUs on the bus that are none for containers, those with one
// reason together: a GPU may have dozens of virtual functions.
func (l *List) excused(m *machine.Machine) {
	byReason := map[string][]string{}
	for i := range m.PCI {
		if f := &m.PCI[i]; host.Vendors().IsGPU(f) && gpu.Excuse(f) != "" && m.GPUAt(f.Address) == nil {
			byReason[gpu.Excuse(f)] = append(byReason[gpu.Excuse(f)], f.Address)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(byReason)) {
		l.Note(strings.Join(byReason[reason], ", "), "", "%s: no pod gets it", reason)
	}
}

// skipped explains devices that could not be read. A part of a device may be
// missing without harm, and is a problem all the same, because no part of it
// should fail. Devices that failed for one reason are one finding: a dead driver
// fails all GPUs.
func (l *List) skipped(m *machine.Machine) {
	var reasons []string
	byReason := map[string][]string{}
	for _, s := range m.Skipped {
		if byReason[s.Reason] == nil {
			reasons = append(reasons, s.Reason)
		}
		byReason[s.Reason] = append(byReason[s.Reason], s.Name)
	}
	for _, reason := range reasons {
		remedy := "See dmesg for the device; if it works, the dump (heddle inspect -o json) makes a good bug report."
		for _, v := range host.Vendors() {
			answers := slices.ContainsFunc(m.Probes, func(p machine.Probe) bool {
				return p.Name == v.Probe && p.State == machine.ProbeOK
			})
			// One that its driver lost before it could be read.
			if f := m.Function(byReason[reason][0]); f != nil && answers && v.IsGPU(f) && m.GPUAt(f.Address) == nil {
				remedy = v.Remedies.Lost
			}
		}
		l.Problem(strings.Join(byReason[reason], ", "), remedy, "left out: %s", reason)
	}
}
