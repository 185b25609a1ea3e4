package program

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/test/docs"
)

var update = flag.Bool("update", false, "write "+docs.Observability)

// Each daemon's metric is 0 while what is written is not what it uses.
func TestConfigValid(t *testing.T) {
	dir := t.TempDir()
	write := func(mode string) {
		t.Helper()
		for name, text := range map[string]string{"version": "v1", "cluster-config": "mode: " + mode} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("native")
	configs, err := config.NewWatcher(dir, config.Uncompiled{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- configs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r := prometheus.NewRegistry()
	r.MustRegister(ConfigValid("heddle-device-plugin", configs), ConfigValid("heddle-topo-worker", configs))
	values := func() map[string]float64 {
		families, err := r.Gather()
		if err != nil || len(families) != 1 || families[0].GetName() != "heddle_config_valid" {
			t.Fatalf("%v, %v", families, err)
		}
		all := map[string]float64{}
		for _, m := range families[0].GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
		return all
	}
	for _, step := range []struct {
		mode string
		want float64
	}{{"native", 1}, {"natvie", 0}, {"sgpu", 1}} {
		if step.mode != "native" {
			write(step.mode)
			<-configs.Changed()
		}
		want := map[string]float64{"heddle-device-plugin": step.want, "heddle-topo-worker": step.want}
		if diff := cmp.Diff(want, values()); diff != "" {
			t.Errorf("mode %s (-want +got):\n%s", step.mode, diff)
		}
	}
	docs.Section(t, "../../..", docs.Observability, "configuration", docs.Metrics(t, r), *update)
}
