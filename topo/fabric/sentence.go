package fabric

import (
	"cmp"
	"fmt"
)

// Subject is the port that a finding is about: "mlx5_3 port 1 (rail 3)"; empty
// for a finding about no port.
func (f *Finding) Subject() string {
	rail := fmt.Sprintf("rail %d", f.Rail)
	if f.Plane > 0 {
		rail += fmt.Sprintf(" plane %d", f.Plane)
	}
	switch device := cmp.Or(f.HCA, f.ID); {
	case f.Kind == BadPath:
		return ""
	case device == "":
		return rail
	case f.Port > 0:
		return fmt.Sprintf("%s port %d (%s)", device, f.Port, rail)
	default:
		return fmt.Sprintf("%s (%s)", device, rail)
	}
}

// Sentence is the finding for people, without its node: the port, what is
// found and what is expected.
func (f *Finding) Sentence() string {
	expected := ""
	if f.Expected != (Switch{}) {
		expected = ", expected " + f.Expected.text()
	}
	switch f.Kind {
	case Miscabled:
		return f.Subject() + " is on " + f.Found.text() + expected
	case Dead:
		return f.Subject() + " has no active link" + expected
	case Missing:
		return f.Subject() + " has no port" + expected
	case Duplicate:
		return f.Subject() + " has the GUID of an HCA of node " + f.Other
	case Unseen:
		return f.Subject() + " is active, and its switch is not known" + expected
	case BadPath:
		if f.Other != "" {
			return "most other nodes of " + f.Other + " report another group above it"
		}
	}
	return "the reported path contradicts the levels"
}

// text is the switch by its name, else its ID, and the port if it is known.
func (s Switch) text() string {
	if s.Port == "" {
		return cmp.Or(s.Name, s.ID)
	}
	return cmp.Or(s.Name, s.ID) + " port " + s.Port
}
