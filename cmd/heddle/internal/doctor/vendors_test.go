package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

// What a node with GPUs of AMD or MetaX shows is in that maker's words: the golden labels, resources
// and matrix, and doctor's findings about GPUs that are sick, lost or without a
// driver.
func TestNoWordOfAnotherVendor(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)nvidia|nvml|nvlink|nvswitch|cuda|\bxid|\bmig\b|mps\.`)
	var files []string
	for maker, shapes := range map[string]int{"amd-mi": 6, "metax-": 2} {
		found, err := filepath.Glob(machines + maker + "*.json")
		if err != nil || len(found) < shapes {
			t.Fatalf("machines %v, %v", found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".json")
		var shown strings.Builder
		for _, golden := range []string{".labels", ".resources", ".matrix", ".table"} {
			text, err := os.ReadFile(name + golden)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(text)
		}
		for _, state := range []machine.HealthState{machine.Healthy, machine.Unhealthy, machine.Lost, "no driver"} {
			out, err := doctor(t, "--machine", withGPUs(t, file, state), "--config", name+".config")
			if fails := state != machine.Healthy; (err != nil) != fails {
				t.Errorf("%s, GPUs %s: %v\n%s", name, state, err, out)
			}
			shown.WriteString(out)
		}
		for line := range strings.Lines(shown.String()) {
			if word := foreign.FindString(line); word != "" {
				t.Errorf("%s shows %q: %s", filepath.Base(name), word, line)
			}
		}
	}
}

// withGPUs is a copy of a machine file whose GPUs are in a state.
func withGPUs(t *testing.T, file string, state machine.HealthState) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Decode(text)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.GPUs {
		if m.GPUs[i].Health.State = state; state != machine.Healthy {
			m.GPUs[i].Health.Reason = "RAS counts 2 uncorrectable errors of umc"
		}
	}
	if state == "no driver" {
		m.GPUs, m.Driver = nil, machine.Driver{}
		for i := range m.Probes {
			switch m.Probes[i].Name {
			case "kfd":
				m.Probes[i].State, m.Probes[i].Reason = machine.ProbeAbsent, "KFD is absent: the amdgpu driver is not loaded"
			case "mxcd":
				m.Probes[i].State, m.Probes[i].Reason = machine.ProbeAbsent, "MXCD is absent: the metax driver is not loaded"
			}
		}
	}
	if text, err = machine.Encode(m); err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(changed, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return changed
}
