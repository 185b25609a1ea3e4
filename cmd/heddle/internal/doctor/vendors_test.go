package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
)

// What a node with AMD's GPUs shows is in AMD's words: the golden labels, resources
// and matrix, and doctor's findings about GPUs that are sick, lost or without a
// driver.
func TestNoWordOfAnotherVendor(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)nvidia|nvml|nvlink|nvswitch|cuda|\bxid|\bmig\b|mps\.`)
	files, err := filepath.Glob(machines + "amd-mi*.json")
	if err != nil || len(files) < 6 {
		t.Fatalf("machines %v, %v", files, err)
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
			if m.Probes[i].Name == "kfd" {
				m.Probes[i].State, m.Probes[i].Reason = machine.ProbeAbsent, "KFD is absent: the amdgpu driver is not loaded"
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
