package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/programtest"
)

const dgx = "../../test/machines/dgx-h100.json"

func TestMistakes(t *testing.T) {
	programtest.Run(t, name, run, program.ErrUsage, []programtest.Case{
		{Name: "no daemon", Args: []string{"--metrics-address="}, Err: program.ErrUsage, Stderr: "no daemon is named"},
		{Name: "another's", Args: []string{"topo-master"}, Err: program.ErrUsage, Stderr: `unexpected argument "topo-master"`},
		{Name: "twice", Args: []string{"topo-worker", "topo-worker"}, Err: program.ErrUsage, Stderr: "topo-worker is named twice"},
		{Name: "a flag of none", Args: []string{"--kubelet-dir=/x", "device-plugin"}, Err: program.ErrUsage, Stderr: "-kubelet-dir"},
		{
			Name: "a bad flag of one", Args: []string{"feature-discovery", "device-plugin", "--interval=1ms"}, Err: program.ErrUsage,
			Stderr: "heddle-node device-plugin: --interval: 1ms is less than 1s",
		},
		{
			Name:   "one that fails",
			Args:   []string{"--metrics-address=", "feature-discovery", "--machine", dgx, "--output-file=/x", "topo-worker", "--machine=none.json", "--config=none"},
			Stderr: "topo-worker: ",
		},
	})
}

// Two daemons answer at one address, and what the device plugin reads is what feature
// discovery makes labels of.
func TestTogether(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var stderr bytes.Buffer
	labels := filepath.Join(dir, "labels")
	go func() {
		done <- run(ctx, []string{
			"--metrics-address", address, "--node-name", "n1",
			// Which machine it would read is of no use here: the device plugin's is read.
			"feature-discovery", "--machine", "none.json", "--output-file", labels,
			"device-plugin", "--machine", dgx, "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"), "--kubeconfig", filepath.Join(dir, "none"),
		}, io.Discard, &stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, part := range []string{"daemon=device-plugin", "daemon=feature-discovery"} {
			if !strings.Contains(stderr.String(), part) {
				t.Errorf("its log has no %s", part)
			}
		}
	})
	await(t, func() string {
		status, body := get("http://" + address + "/readyz")
		return unless(status == http.StatusOK, body)
	})
	await(t, func() string {
		text, _ := os.ReadFile(labels)
		return unless(strings.Contains(string(text), "nvidia.com/gpu.count=8\n"), string(text))
	})
	for path, want := range map[string]string{"/healthz": "ok", report.Path: `"node":"n1"`} {
		if status, body := get("http://" + address + path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get("http://" + address + "/v1/none"); status != http.StatusNotFound {
		t.Errorf("/v1/none: %d %s", status, body)
	}
	_, metrics := get("http://" + address + "/metrics")
	for _, metric := range []string{"heddle_node_labels ", "heddle_bindings", "heddle_build_info{", "go_goroutines "} {
		if got := strings.Count(metrics, "\n"+metric); got == 0 || metric != "heddle_bindings" && got != 1 {
			t.Errorf("%d lines of %s", got, metric)
		}
	}
}

// A device plugin that cleans the host reads no machine: the other daemons read one of
// their own, and do not wait for it.
func TestBesideACleanup(t *testing.T) {
	dir := t.TempDir()
	state, labels := filepath.Join(dir, "state"), filepath.Join(dir, "labels")
	if err := os.MkdirAll(state, 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{
			"--metrics-address=", "--node-name=n1",
			"feature-discovery", "--machine", dgx, "--output-file", labels,
			"device-plugin", "--cleanup", "--kubelet-dir", filepath.Join(dir, "kubelet"),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", state, "--mps-shm-dir", filepath.Join(dir, "shm"),
		}, io.Discard, io.Discard)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	await(t, func() string {
		text, _ := os.ReadFile(labels)
		_, err := os.Stat(state)
		return unless(strings.Contains(string(text), "nvidia.com/gpu.count=8\n") && os.IsNotExist(err), string(text))
	})
}

func unless(ok bool, text string) string {
	if ok {
		return ""
	}
	return fmt.Sprintf("still %q", text)
}

func await(t *testing.T, wrong func() string) {
	t.Helper()
	ticker, late := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
	defer ticker.Stop()
	for text := wrong(); text != ""; text = wrong() {
		select {
		case <-ticker.C:
		case <-late:
			t.Fatal(text)
		}
	}
}

// get is what an address answers, or why it does not.
func get(url string) (status int, body string) {
	answer, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}
