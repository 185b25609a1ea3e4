package topo

import (
	"context"
	"fmt"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// miscabled lists the findings. Ports of which nobody knows the switch are
// shown and are no fault.
func (c *command) miscabled(ctx context.Context) error {
	t, err := c.topology(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"NODE", "WHAT", "RAIL", "HCA", "SINCE", "EXPECTED", "FOUND"}}
	faults := 0
	for i := range t.Findings {
		f := &t.Findings[i]
		since := ""
		if !f.Since.IsZero() {
			since = at(f.Since)
		}
		rows = append(rows, []string{f.Node, string(f.Kind), rail(f), hca(f), since, end(f.Expected), found(f)})
		if f.Kind != fabric.Unseen {
			faults++
		}
	}
	for _, i := range t.Ignored {
		rows = append(rows, []string{i.Name, "ignored", "", "", "", "", i.Reason})
		faults++
	}
	if len(rows) == 1 {
		return c.write("Every cable is where it belongs.\n" + old(t))
	}
	if err := c.write(cli.Table(rows, 2) + old(t)); err != nil {
		return err
	}
	if faults > 0 {
		return cli.ErrFindings
	}
	return nil
}

// rail is "3", or "3/1" on plane 1.
func rail(f *fabric.Finding) string {
	if f.Kind == fabric.BadPath {
		return ""
	}
	if f.Plane > 0 {
		return fmt.Sprintf("%d/%d", f.Rail, f.Plane)
	}
	return fmt.Sprint(f.Rail)
}

func hca(f *fabric.Finding) string {
	if f.HCA == "" {
		return f.ID
	}
	return fmt.Sprintf("%s:%d", f.HCA, f.Port)
}

// found is what is at the other end, or who contradicts.
func found(f *fabric.Finding) string {
	switch {
	case f.Kind == fabric.Duplicate:
		return "the GUID is that of node " + f.Other + " too"
	case f.Kind == fabric.BadPath && f.Other != "":
		return "most of " + f.Other + " say otherwise"
	case f.Kind == fabric.BadPath:
		return "the path contradicts the levels"
	}
	return end(f.Found)
}

// end is a switch by its name, else its ID.
func end(s *fabric.Switch) string {
	if s == nil {
		return "-"
	}
	text := s.ID
	if s.Name != "" {
		text = s.Name
	}
	if s.Port != "" {
		text += " port " + s.Port
	}
	return text
}
