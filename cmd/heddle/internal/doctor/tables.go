package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// handedOut renders what the kubelet is offered and which containers have what.
func handedOut(p *report.Report) string {
	text := "\n" + cli.Table(servedRows(p))
	if len(p.Bindings) == 0 {
		return text + sharedGPUs(p) + "\nNo container has devices.\n"
	}
	rows := [][]string{{"POD", "CONTAINER", "GPUS", "HCAS", "CLASS"}}
	for i := range p.Bindings {
		b := &p.Bindings[i]
		if len(b.GPUs)+len(b.HCAs) == 0 && len(b.Shares) > 0 {
			continue // The table of shares has it.
		}
		uuids := slices.Clone(b.GPUs)
		for _, s := range b.Shares {
			uuids = append(uuids, s.UUID)
		}
		rows = append(rows, []string{
			podName(b.Namespace, b.Pod, b.UID), containerOf(b), cmp.Or(gpus(uuids, p.GPUIndices), "-"),
			cmp.Or(strings.Join(b.HCAs, " "), "-"), cmp.Or(b.Class, "-"),
		})
	}
	if len(rows) > 1 {
		text += "\n" + cli.Table(rows)
	}
	return text + sharedGPUs(p)
}

// containerOf names the container of a binding, or the claim in its place.
func containerOf(b *report.Binding) string {
	if b.Claim != "" {
		return "claim " + b.Claim
	}
	return b.Container
}

func servedRows(p *report.Report) [][]string {
	rows := [][]string{{"RESOURCE", "SERVED BY", "CAPACITY", "ALLOCATABLE", "WITHDRAWN", "WHY NOT MORE"}}
	for i := range p.Resources {
		r := &p.Resources[i]
		by := cmp.Or(r.Owner, "none")
		if r.Registered {
			by = "heddle"
		}
		rows = append(rows, []string{
			r.Name, by, strconv.Itoa(r.Capacity), strconv.Itoa(r.Allocatable), strconv.Itoa(r.Withdrawn), cmp.Or(r.Reason, "-"),
		})
	}
	return rows
}

// sharedGPUs renders the use of each shared GPU and its containers; empty on a node without shared
// GPUs.
func sharedGPUs(p *report.Report) string {
	rows := [][]string{{"GPU", "MODE", "POLICY", "VCORE", "MEMORY GIB", "CONSUMERS", "WHY NOT MORE"}}
	for i := range p.GPUs {
		c := &p.GPUs[i]
		s := c.Shared
		if s == nil {
			continue
		}
		policy := cmp.Or(string(s.Policy), "-")
		if s.Exclusive {
			policy = "alone"
		}
		rows = append(rows, []string{
			gpus([]string{c.UUID}, p.GPUIndices), cmp.Or(c.Mode, "-"), policy, fmt.Sprintf("%d/100", s.VCore),
			gib(s.UsedMiB) + "/" + gib(max(s.MemoryMiB, s.RoomMiB)), fmt.Sprintf("%d/%d", s.Consumers, s.Slots),
			cmp.Or(s.Unhealthy, "-"),
		})
	}
	if len(rows) == 1 {
		return ""
	}
	text := "\n" + cli.Table(rows)
	if rows = shareRows(p); len(rows) > 1 {
		text += "\n" + cli.Table(rows)
	}
	return text
}

// shareRows returns the containers with shares, by GPU.
func shareRows(p *report.Report) [][]string {
	type share struct {
		gpu int
		row []string
	}
	var all []share
	for i := range p.Bindings {
		b := &p.Bindings[i]
		for _, s := range b.Shares {
			index, known := p.GPUIndices[s.UUID]
			if !known {
				index = math.MaxInt
			}
			vcore := strconv.Itoa(s.VCore)
			if s.VCore == 0 {
				vcore = "-"
			}
			all = append(all, share{index, []string{
				gpus([]string{s.UUID}, p.GPUIndices), podName(b.Namespace, b.Pod, b.UID), containerOf(b), vcore, gib(s.MemoryMiB),
				limitedBy(b.Enforced), cmp.Or(b.By, "-"),
			}})
		}
	}
	slices.SortStableFunc(all, func(a, b share) int { return cmp.Compare(a.gpu, b.gpu) })
	rows := [][]string{{"GPU", "POD", "CONTAINER", "VCORE", "MEMORY GIB", "LIMITED BY", "CHOSEN BY"}}
	for i := range all {
		rows = append(rows, all[i].row)
	}
	return rows
}

// limitedBy names the enforcers of memory and compute.
func limitedBy(e enforce.Enforced) string {
	if e == (enforce.Enforced{}) {
		return "-"
	}
	return string(cmp.Or(e.Memory, config.EnforceNone)) + ", " + string(cmp.Or(e.Compute, config.EnforceNone))
}

// gib is MiB in GiB, to a tenth.
func gib(mib int64) string {
	return strconv.FormatFloat(math.Round(float64(mib)/1024*10)/10, 'f', -1, 64)
}

// gpus are GPUs by index, with the start of their UUIDs: GPU-01234567
// is unique on a node.
func gpus(uuids []string, index map[string]int) string {
	const short = 12
	sorted := slices.SortedStableFunc(slices.Values(uuids), func(a, b string) int {
		return cmp.Compare(index[a], index[b])
	})
	names := make([]string, 0, len(sorted))
	for _, uuid := range sorted {
		name := uuid[:min(len(uuid), short)]
		if at, known := index[uuid]; known {
			name = fmt.Sprintf("%d (%s)", at, name)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

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
	// Subject is the device or part: GPU 6, mlx5_3, probe nvml.
	Subject string `json:"subject"`
	Message string `json:"message"`
	// Remedy is the recommended action, or empty.
	Remedy string `json:"remedy,omitempty"`
}

// Findings collects findings.
type Findings []Finding

// problem adds a finding that needs action. remedy may be empty.
func (l *Findings) problem(subject, remedy, format string, args ...any) {
	*l = append(*l, Finding{Problem, subject, fmt.Sprintf(format, args...), remedy})
}

// note adds a finding that needs no action. What is there already is not repeated: the Node and the device plugin
// report some facts both.
func (l *Findings) note(subject, remedy, format string, args ...any) {
	if f := (Finding{Note, subject, fmt.Sprintf(format, args...), remedy}); !slices.Contains(*l, f) {
		*l = append(*l, f)
	}
}

// sorted puts problems first and keeps the order otherwise. It also counts them.
// It is never nil: an object has an empty list.
func (l *Findings) sorted() (all Findings, problems int) {
	all = Findings{}
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

// group joins names by what they have in common, in the order of the first of each.
type group struct {
	order []string
	names map[string][]string
}

func (g *group) add(key, name string) {
	if g.names == nil {
		g.names = map[string][]string{}
	}
	if g.names[key] == nil {
		g.order = append(g.order, key)
	}
	g.names[key] = append(g.names[key], name)
}

func (g *group) join(key string) string { return strings.Join(g.names[key], ", ") }
