package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/agent/report"
	"github.com/heddle-dev/heddle/test/kubelet"
)

const dgx = "../../test/machines/dgx-h100.json"

func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "half.json")
	whole, err := os.ReadFile(dgx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config")
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"version": "v1", "cluster-config": "mode: nativ\n"} {
		if err := os.WriteFile(filepath.Join(config, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root := filepath.Dir(kubelet.Start(t, kubelet.Dir(t)).PluginDir())
	for _, tt := range []struct {
		name           string
		args           []string
		want           error
		stdout, stderr string // parts that must be there; stderr also in the error
	}{
		{name: "help", args: []string{"--help"}, want: flag.ErrHelp, stderr: "-device-list-strategy"},
		{name: "version", args: []string{"--version"}, stdout: "heddle-device-plugin dev"},
		{name: "unknown flag", args: []string{"--take-over"}, want: program.ErrUsage, stderr: "take-over"},
		{name: "stray argument", args: []string{"x"}, want: program.ErrUsage, stderr: `unexpected argument "x"`},
		{name: "bad log format", args: []string{"--log-format=xml"}, want: program.ErrUsage, stderr: "neither text nor json"},
		{name: "bad log level", args: []string{"--log-level=loud"}, want: program.ErrUsage, stderr: "log-level"},
		{name: "bad strategy", args: []string{"--device-list-strategy=volume-mounts"}, want: program.ErrUsage, stderr: "neither cdi nor envvar"},
		{name: "short interval", args: []string{"--interval=1ms"}, want: program.ErrUsage, stderr: "less than 1s"},
		{name: "nodes for real GPUs", args: []string{"--replay-devices=/x"}, want: program.ErrUsage, stderr: "--machine FILE"},
		{name: "machine file cut in half", args: []string{"--machine", bad}, stderr: "half.json"},
		{name: "no machine file", args: []string{"--machine", bad + ".x"}, stderr: "half.json.x"},
		{name: "bad configuration", args: []string{"--machine", dgx, "--config", config}, stderr: "cluster-config:1"},
		{name: "bad address", args: []string{"--machine", dgx, "--kubelet-dir", root, "--state-dir", dir, "--cdi-dir", dir, "--metrics-address", "x.invalid:1"}, stderr: "x.invalid"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "")
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), tt.args, &stdout, &stderr)
			said := stderr.String()
			if err != nil {
				said += err.Error()
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if tt.want == nil && (err != nil) != (tt.stderr != "") {
				t.Errorf("error %v", err)
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(said, tt.stderr) {
				t.Errorf("stdout %q\nstderr and error %q", stdout.String(), said)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Setenv("NODE_NAME", "gpu-1")
	t.Setenv("KUBECONFIG", "")
	o, err := parseFlags(nil, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if o.NodeName != "gpu-1" || o.Interval != 10*time.Second || o.kubeletDir != "/var/lib/kubelet" ||
		o.metricsAddress != ":9102" || o.Machine != "host" || o.strategy != "cdi" {
		t.Errorf("defaults %+v", o)
	}
}

// get is what an address answers, or why it does not.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// TestServe runs the daemon on a fake kubelet and without an API server.
func TestServe(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	t.Setenv("KUBECONFIG", "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{
			"--machine", dgx, "--node-name", "gpu-1", "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"),
			"--metrics-address", address, "--log-level", "error",
		}, &bytes.Buffer{}, &bytes.Buffer{})
	}()
	within, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for resource, n := range map[string]int{"nvidia.com/gpu": 8, "rdma/hca_shared_devices_ib": 512} {
		k.Wait(within, resource, func(s kubelet.State) bool { return len(s.Healthy) == n })
	}
	for path, want := range map[string]string{
		report.Path: `"name":"nvidia.com/gpu","kind":"gpu","registered":true`, "/readyz": "ok", "/healthz": "ok",
		"/metrics": `heddle_bindings{resource="nvidia.com/gpu"} 0`,
	} {
		// The kubelet has the lists a moment before the daemon knows, and
		// before it answers here.
		for got := ""; !strings.Contains(got, want); runtime.Gosched() {
			if within.Err() != nil {
				t.Fatalf("%s: %s has no %s", path, got, want)
			}
			got = get("http://" + address + path)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
