package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A target's labels are the scrape configuration's, and queries see its counters grow.
func TestScrape(t *testing.T) {
	count := 0
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count++
		fmt.Fprintf(w, "# TYPE seen_total counter\nseen_total{pod=\"inner\"} %d\n", count)
	}))
	defer target.Close()
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 100ms, scrape_timeout: 100ms}
scrape_configs:
- {job_name: renamed, static_configs: [{targets: [%[1]s], labels: {pod: outer}}]}
- {job_name: honored, honor_labels: true, static_configs: [{targets: [%[1]s], labels: {pod: outer}}]}
`, strings.TrimPrefix(target.URL, "http://"))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := start(file, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
			t.Errorf("its samples are left: %v", err)
		}
	}()
	const expression = `sum by (job, pod, exported_pod) (rate(seen_total[1m]) > bool 0)`
	want := `[{"metric":{"job":"honored","pod":"inner"},"value":"1","number":true},` +
		`{"metric":{"exported_pod":"inner","job":"renamed","pod":"outer"},"value":"1","number":true}]`
	got := ""
	for end := time.Now().Add(20 * time.Second); got != want && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		samples, err := s.query(t.Context(), expression)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(samples, func(a, b sample) int { return strings.Compare(a.Metric["job"], b.Metric["job"]) })
		text, err := json.Marshal(samples)
		if err != nil {
			t.Fatal(err)
		}
		got = string(text)
	}
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if none, err := s.query(t.Context(), `0/0`); err != nil || len(none) != 1 || none[0].Number {
		t.Errorf("a rate of nothing: %v, %v", none, err)
	}
	if _, err := s.query(t.Context(), `rate(seen_total`); err == nil {
		t.Error("no PromQL, and no error")
	}
}

// What is no configuration is an error that names the file.
func TestBadConfiguration(t *testing.T) {
	for _, text := range []string{"nothing: true", "scrape_configs: [{job_name: x, file_sd_configs: [{files: [y.json]}]}]"} {
		file := filepath.Join(t.TempDir(), "prometheus.yml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := start(file, t.Output()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
