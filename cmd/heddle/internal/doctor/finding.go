package doctor

import (
	"fmt"
	"slices"
	"strings"
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
