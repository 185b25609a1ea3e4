//go:build e2e && linux

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// prometheusServer is tools/promql on the node: the scrapes, the storage and the
// engine of Prometheus, with a job for every monitor of the chart.
type prometheusServer struct {
	in  io.Writer
	out *bufio.Scanner
}

// promSample is a value of a query's result.
type promSample struct {
	Metric map[string]string `json:"metric"`
	Value  string            `json:"value"`
	Number bool              `json:"number"`
}

// monitor is a PodMonitor or a ServiceMonitor of the chart.
type monitor struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Endpoints           []endpoint `yaml:"endpoints"`
		PodMetricsEndpoints []endpoint `yaml:"podMetricsEndpoints"`
	}
}

type endpoint struct {
	Port, Scheme string
	HonorLabels  bool   `yaml:"honorLabels"`
	Token        string `yaml:"bearerTokenFile"`
	// Authorization names a Secret.
	Authorization struct{ Credentials struct{ Name, Key string } }
	Relabelings   []struct {
		SourceLabels []string `yaml:"sourceLabels"`
		Regex        string
		TargetLabel  string `yaml:"targetLabel"`
		Replacement  string
	}
}

// prometheus starts it for the chart as it is installed with these values.
func (b *bed) prometheus(t *testing.T, values string) *prometheusServer {
	t.Helper()
	program := filepath.Join(t.TempDir(), "promql")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", b.path("tools/promql"), "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := b.helm(t, "template", "x", "deploy/helm/heddle", "-n", suite, "--values", values, "--set", "localImages=true,monitoring.deploy=true",
		"-s", "templates/monitoring/podmonitors.yaml", "-s", "templates/scheduler/monitoring.yaml")
	var jobs []any
	for documents := yaml.NewDecoder(strings.NewReader(text)); ; {
		var m monitor
		if err := documents.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(m.Kind, "Monitor") {
			jobs = append(jobs, b.job(t, &m))
		}
	}
	config, err := yaml.Marshal(map[string]any{"global": map[string]any{"scrape_interval": "2s"}, "scrape_configs": jobs})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, err := b.NodeCommand(context.WithoutCancel(t.Context()), program, "-scrape", file)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	return &prometheusServer{in, lines}
}

// metricsToken is a token of a new account with a role, which may be the chart's. Without an
// audience it is for the API server.
func (b *bed) metricsToken(t *testing.T, account, role, audience string) string {
	t.Helper()
	b.kubectl(t, "-n", suite, "create", "serviceaccount", account)
	if role == account {
		b.kubectl(t, "create", "clusterrole", role, "--verb=get", "--non-resource-url=/metrics")
	}
	b.kubectl(t, "create", "clusterrolebinding", account, "--clusterrole="+role, "--serviceaccount="+suite+":"+account)
	args := []string{"-n", suite, "create", "token", account}
	if audience != "" {
		args = append(args, "--audience", audience)
	}
	return strings.TrimSpace(b.kubectl(t, args...))
}

// job is what the Prometheus Operator makes of a monitor, with the pods that there are as targets.
func (b *bed) job(t *testing.T, m *monitor) map[string]any {
	t.Helper()
	from := append(m.Spec.Endpoints, m.Spec.PodMetricsEndpoints...)[0]
	job := map[string]any{"job_name": m.Metadata.Name, "honor_labels": from.HonorLabels}
	if secret := from.Authorization.Credentials; from.Token != "" {
		// As docs/scheduling.md describes it.
		job["authorization"] = map[string]any{"credentials": b.metricsToken(t, "prometheus", "prometheus", "")}
	} else if secret.Name != "" {
		// As docs/security.md describes it.
		token := b.metricsToken(t, "prometheus-pods", "heddle-metrics-reader", report.Audience)
		b.kubectl(t, "-n", suite, "create", "secret", "generic", secret.Name, "--from-literal="+secret.Key+"="+token)
		job["authorization"] = map[string]any{"credentials": token}
	}
	if from.Scheme == "https" {
		job["scheme"], job["tls_config"] = "https", map[string]any{"insecure_skip_verify": true}
	}
	var relabelings []any
	for _, r := range from.Relabelings {
		relabeling := map[string]any{"source_labels": r.SourceLabels, "target_label": r.TargetLabel}
		if r.Regex != "" {
			relabeling["regex"], relabeling["replacement"] = r.Regex, r.Replacement
		}
		relabelings = append(relabelings, relabeling)
	}
	job["relabel_configs"] = relabelings
	var static []any
	for _, p := range b.pods(t, m.Metadata.Name) {
		address := p.Status.PodIP
		for _, port := range p.Spec.Containers[0].Ports {
			if name := port.Name; name == from.Port || name == "api" && from.Port == "http" {
				address = fmt.Sprintf("%s:%d", p.Status.PodIP, port.ContainerPort)
			}
		}
		static = append(static, map[string]any{"targets": []string{address}, "labels": map[string]string{
			"namespace": suite, "pod": p.Name, "container": p.Spec.Containers[0].Name,
			"__meta_kubernetes_pod_ip": p.Status.PodIP, "__meta_kubernetes_pod_node_name": p.Spec.NodeName,
		}})
	}
	if len(static) == 0 {
		t.Fatalf("%s %s is of no pod", m.Kind, m.Metadata.Name)
	}
	job["static_configs"] = static
	return job
}

// query is the result of an expression for now.
func (p *prometheusServer) query(t *testing.T, expression string) (samples []promSample) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, expression); err != nil {
		t.Fatal(err)
	}
	if !p.out.Scan() {
		t.Fatalf("%s: Prometheus ended: %v", expression, p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &samples); err != nil {
		t.Fatalf("%s: %v: %s", expression, err, p.out.Text())
	}
	return samples
}
