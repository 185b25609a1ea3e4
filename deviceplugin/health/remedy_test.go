package health

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

func TestRemedyOf(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	well := func(ago time.Duration) State { return State{Healthy: true, Since: at.Add(-ago)} }
	ill := func(ago time.Duration) State {
		return State{Cause: Lost, Reason: "it is lost", Since: at.Add(-ago)}
	}
	const long, short = 3 * time.Minute, time.Minute
	for _, tt := range []struct {
		name     string
		policy   config.RemediationPolicy
		a, b     State
		cordoned bool
		want     Remedy
	}{
		{"all healthy", config.RemediationDrain, well(long), well(long), false, Remedy{}},
		{"just ill", config.RemediationDrain, ill(short), well(long), false, Remedy{Message: "GPU a: it is lost"}},
		{"ill", config.RemediationDrain, ill(long), well(long), false, Remedy{true, []string{"a"}, "GPU a: it is lost"}},
		{"exactly long enough", config.RemediationCordon, well(long), ill(2 * time.Minute), false, Remedy{true, []string{"b"}, "GPU b: it is lost"}},
		{
			"a second one is drained after its own time", config.RemediationDrain, ill(long), ill(short), true,
			Remedy{true, []string{"a"}, "GPU a, GPU b: it is lost"},
		},
		{"both", config.RemediationDrain, ill(long), ill(long), true, Remedy{true, []string{"a", "b"}, "GPU a, GPU b: it is lost"}},
		{"just healthy again", config.RemediationCordon, well(short), well(long), true, Remedy{Cordon: true}},
		{"healthy again", config.RemediationCordon, well(long), well(long), true, Remedy{}},
		{"a restart with an ill GPU", config.RemediationDrain, ill(0), well(0), true, Remedy{Cordon: true, Message: "GPU a: it is lost"}},
		{"a restart with healthy ones", config.RemediationDrain, well(0), well(0), true, Remedy{Cordon: true}},
		{"turned off", config.RemediationNone, ill(long), well(long), true, Remedy{Message: "GPU a: it is lost"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Snapshot{GPUs: map[string]State{"a": tt.a, "b": tt.b}}
			got := RemedyOf(config.Remediation{Policy: tt.policy, After: 2 * time.Minute}, s, tt.cordoned, at)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
