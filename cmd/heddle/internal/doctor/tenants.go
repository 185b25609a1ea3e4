package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// sharedCards renders what is taken of each shared card, and who has it; empty
// on a node that shares none.
func sharedCards(p *report.Report) string {
	rows := [][]string{{"CARD", "MODE", "POLICY", "VCORE", "MEMORY GIB", "TENANTS", "WHY NOT MORE"}}
	for i := range p.Cards {
		c := &p.Cards[i]
		s := c.Shared
		if s == nil {
			continue
		}
		policy := cmp.Or(s.Policy, "-")
		if s.Exclusive {
			policy = "alone"
		}
		rows = append(rows, []string{
			cards([]string{c.UUID}, p.GPUs), cmp.Or(c.Mode, "-"), policy, fmt.Sprintf("%d/100", s.VCore),
			gib(s.UsedMiB) + "/" + gib(s.MemoryMiB), fmt.Sprintf("%d/%d", s.Tenants, s.Slots), cmp.Or(s.Against, "-"),
		})
	}
	if len(rows) == 1 {
		return ""
	}
	text := "\n" + cli.Table(rows)
	if rows = tenants(p); len(rows) > 1 {
		text += "\n" + cli.Table(rows)
	}
	return text
}

// tenants are the rows of the containers with shares, by card.
func tenants(p *report.Report) [][]string {
	rows := [][]string{{"CARD", "TENANT", "CONTAINER", "VCORE", "MEMORY GIB", "LIMITED BY", "CHOSEN BY"}}
	type tenant struct {
		card int
		row  []string
	}
	var all []tenant
	for i := range p.Bindings {
		b := &p.Bindings[i]
		for _, s := range b.Shares {
			index, known := p.GPUs[s.UUID]
			if !known {
				index = math.MaxInt
			}
			vcore := strconv.Itoa(s.VCore)
			if s.VCore == 0 {
				vcore = "-"
			}
			all = append(all, tenant{index, []string{
				cards([]string{s.UUID}, p.GPUs), podOf(b), b.Container, vcore, gib(s.MemoryMiB),
				limitedBy(b.Enforced), cmp.Or(b.By, "-"),
			}})
		}
	}
	slices.SortStableFunc(all, func(a, b tenant) int { return cmp.Compare(a.card, b.card) })
	for i := range all {
		rows = append(rows, all[i].row)
	}
	return rows
}

// limitedBy is what limits memory and what compute.
func limitedBy(e enforce.Enforced) string {
	if e == (enforce.Enforced{}) {
		return "-"
	}
	return string(cmp.Or(e.Memory, enforce.None)) + ", " + string(cmp.Or(e.Compute, enforce.None))
}

// gib is MiB in GiB, to a tenth.
func gib(mib int64) string {
	return strconv.FormatFloat(math.Round(float64(mib)/1024*10)/10, 'f', -1, 64)
}

// podOf is namespace/name, or the UID where the pod's name is not known.
func podOf(b *report.Binding) string {
	if b.Pod == "" {
		return "UID " + b.UID
	}
	return b.Namespace + "/" + b.Pod
}

// refused explains the pods that wait for shares.
func refused(all []report.Refusal) []finding.Finding {
	var findings []finding.Finding
	for i := range all {
		r := &all[i]
		pod := r.Namespace + "/" + r.Pod
		if r.Pod == "" {
			pod = "UID " + r.UID
		}
		findings = append(findings, finding.Finding{
			Level: finding.Problem, Subject: "pod " + pod,
			Message: fmt.Sprintf("container %s gets no card since %s: %s",
				r.Container, r.Since.UTC().Format(time.RFC3339), r.Reason),
			Remedy: remedyOf(r.Kind),
		})
	}
	return findings
}

// unrecorded tells of containers of which the device plugin has lost everything
// but what their pod's annotation says.
func unrecorded(p *report.Report) []finding.Finding {
	var findings []finding.Finding
	for i := range p.Bindings {
		b := &p.Bindings[i]
		if !b.Unrecorded {
			continue
		}
		findings = append(findings, finding.Finding{
			Level: finding.Problem, Subject: "pod " + podOf(b),
			Message: "the record and the CDI spec of container " + b.Container + " were lost; its cards are those that the " +
				"pod's annotation names, and nobody else gets them",
			Remedy: "It runs on. When it starts again its cards are chosen anew; to have that now, delete the pod.",
		})
	}
	return findings
}

// remedyOf is what to do about a refused pod, by the kind of refusal.
func remedyOf(kind string) string {
	switch kind {
	case "request":
		return "Put its limits or annotations right: no node can give it that."
	case "allocation":
		return "Its scheduler chose so. It is evicted after sgpu.refusedFor if a controller made it; else delete it."
	case "unscheduled":
		return "Let a scheduler that knows cards have it (spec.schedulerName), or set sgpu.unscheduled: place."
	case "full":
		return "It starts when there is room. It is evicted after sgpu.refusedFor if a controller made it; else delete it."
	}
	return ""
}

// limits tells what makes limits of shares hold, and what does not.
func limits(e *report.Enforcers) []finding.Finding {
	if e == nil {
		return nil
	}
	if e.Fault != "" {
		return []finding.Finding{{
			Level: finding.Problem, Subject: "limits of shares", Message: "shares are refused: " + e.Fault,
			Remedy: "See sgpu.enforce: auto takes what works here, none only counts.",
		}}
	}
	var all []finding.Finding
	for _, why := range []string{e.WhyMemory, e.WhyCompute} {
		if why != "" {
			all = append(all, finding.Finding{Level: finding.Note, Subject: "limits of shares", Message: why})
		}
	}
	return all
}

// mps tells of MPS daemons that do not work, and of those that did not.
func mps(all []enforce.Daemon) []finding.Finding {
	var findings []finding.Finding
	for i := range all {
		d := &all[i]
		f := finding.Finding{Level: finding.Problem, Subject: fmt.Sprintf("MPS daemon of card %d (%s)", d.Index, d.GPU)}
		switch {
		case d.Reason != "":
			f.Message = fmt.Sprintf("is %s since %s: %s (%s, %s)", d.State, d.Since.UTC().Format(time.RFC3339), d.Reason,
				lastWell(d), cli.Count(d.Restarts, "restart"))
			f.Remedy = "Its containers that ran have to be started again, new ones wait. Its own log is " +
				"mps/" + d.GPU + "/log/control.log in the state directory; see also heddle-device-plugin's log."
		case d.Restarts > 0:
			f.Level = finding.Note
			f.Message = fmt.Sprintf("is %s since %s, after %s: %s", d.State, d.Since.UTC().Format(time.RFC3339),
				cli.Count(d.Restarts, "restart"), d.LastError)
			f.Remedy = "CUDA programs that used it before that fail until they are started again."
		default:
			continue
		}
		findings = append(findings, f)
	}
	return findings
}

func lastWell(d *enforce.Daemon) string {
	if d.LastRunning.IsZero() {
		return "it never ran"
	}
	return "it last ran at " + d.LastRunning.UTC().Format(time.RFC3339)
}

// unmeasured tells why there are no metrics of what containers use.
func unmeasured(why string) []finding.Finding {
	if why == "" {
		return nil
	}
	return []finding.Finding{{
		Level: finding.Note, Subject: "use of shared cards", Message: "is not measured: " + why,
	}}
}
