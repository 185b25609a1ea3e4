package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/node/topoworker"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/internal/dirlock"
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

// node are two daemons in one process, beside a kubelet.
type node struct {
	address, labels string
	// stop ends them and returns their log.
	stop func() string
}

// start runs the daemons on a replayed machine with a configuration.
func start(t *testing.T, machine, config string) *node {
	t.Helper()
	k := kubelet.Start(t, kubelet.Dir(t))
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{address: listener.Addr().String(), labels: filepath.Join(dir, "labels")}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	var stderr bytes.Buffer
	go func() {
		done <- run(ctx, []string{
			"--metrics-address", n.address, "--node-name", "n1", "--log-level", "debug", "--config", config,
			// Which machine it would read is of no use here: the device plugin's is read.
			"feature-discovery", "--machine", "none.json", "--output-file", n.labels,
			"device-plugin", "--machine", machine, "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"), "--kubeconfig", filepath.Join(dir, "none"),
		}, io.Discard, &stderr)
	}()
	n.stop = sync.OnceValue(func() string {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		return stderr.String()
	})
	t.Cleanup(func() { n.stop() })
	return n
}

// waitReady waits until the device plugin is ready and the labels have this.
func (n *node) waitReady(t *testing.T, label string) {
	t.Helper()
	await(t, func() string {
		status, body := get("http://" + n.address + "/readyz")
		return unless(status == http.StatusOK, body)
	})
	await(t, func() string {
		text, _ := os.ReadFile(n.labels)
		return unless(strings.Contains(string(text), label), string(text))
	})
}

// Two daemons answer at one address, and what the device plugin reads is what feature
// discovery makes labels of.
func TestTogether(t *testing.T) {
	n := start(t, dgx, programtest.Config(t, ""))
	t.Cleanup(func() {
		log := n.stop()
		for _, part := range []string{"daemon=device-plugin", "daemon=feature-discovery"} {
			if !strings.Contains(log, part) {
				t.Errorf("its log has no %s", part)
			}
		}
	})
	address := n.address
	n.waitReady(t, "nvidia.com/gpu.count=8\n")
	for path, want := range map[string]string{"/healthz": "ok", report.Path: `"node":"n1"`} {
		if status, body := get("http://" + address + path); status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get("http://" + address + "/v1/none"); status != http.StatusNotFound {
		t.Errorf("/v1/none: %d %s", status, body)
	}
	_, metrics := get("http://" + address + "/metrics")
	for _, metric := range []string{
		`heddle_config_valid{daemon="heddle-device-plugin"} 1`, `heddle_config_valid{daemon="heddle-feature-discovery"} 1`,
		"heddle_node_labels ", "heddle_bindings", "heddle_build_info{", "go_goroutines ",
	} {
		if got := strings.Count(metrics, "\n"+metric); got == 0 || metric != "heddle_bindings" && got != 1 {
			t.Errorf("%d lines of %s", got, metric)
		}
	}
}

// Of a node with GPUs of AMD or MetaX, the log of each daemon, the labels and what the device
// plugin reports are in that maker's words, at every level of the log.
func TestWordsOfTheMaker(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)nvidia|nvml|nvlink|nvswitch|cuda|\bxid|\bmig\b`)
	for _, tt := range []struct{ name, machine, config, label string }{
		{"AMD", "amd-mi300x", "", "amd.com/gpu.count=8\n"},
		{"AMD in partitions", "amd-mi300x-cpx", "", "amd.com/gpu.compute-memory-partition="},
		{"AMD in shares", "amd-mi210-two-hives", "mode: sgpu\n", "amd.com/gpu.sharing-strategy="},
		{"MetaX", "metax-c500-box", "", "metax-tech.com/gpu.product=MXC500\n"},
		{"MetaX in shares", "metax-c550-pcie", "mode: sgpu\n", "metax-tech.com/gpu.sharing-strategy="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := programtest.Config(t, "domains: {vendor: auto}\n"+tt.config)
			machine := "../../test/machines/" + tt.machine + ".json"
			n := start(t, machine, config)
			n.waitReady(t, tt.label)
			labels, err := os.ReadFile(n.labels)
			if err != nil {
				t.Fatal(err)
			}
			_, bindings := get("http://" + n.address + report.Path)
			var worker, log bytes.Buffer
			err = program.Run(t.Context(), topoworker.Name, "dev", topoworker.New("dev"), []string{
				"--oneshot", "--dry-run", "--machine", machine, "--node-name", "n1", "--config", config, "--log-level", "debug",
			}, &worker, &log)
			if err != nil {
				t.Error(err)
			}
			for what, text := range map[string]string{
				"log": n.stop(), "labels": string(labels), "bindings": bindings,
				"NodeTopology": worker.String(), "log of topo-worker": log.String(),
			} {
				if word := foreign.FindString(text); word != "" || text == "" {
					t.Errorf("%s: %q\n%s", what, word, text)
				}
			}
		})
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

// The next process waits for the end of the one that works, with all its daemons: feature
// discovery reads and writes nothing beside it.
func TestTheNextProcessWaits(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	first, err := dirlock.Take(t.Context(), state, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k := kubelet.Start(t, kubelet.Dir(t))
	labels := filepath.Join(dir, "labels")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	log, written := io.Pipe()
	go func() {
		done <- run(ctx, []string{
			"--metrics-address=", "--node-name=n1",
			"feature-discovery", "--machine", dgx, "--output-file", labels,
			"device-plugin", "--machine", dgx, "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", state, "--kubeconfig", filepath.Join(dir, "none"),
		}, io.Discard, written)
		written.Close()
	}()
	// It waits after its first line, which has no other daemon's before it.
	lines := bufio.NewScanner(log)
	if !lines.Scan() || !strings.Contains(lines.Text(), "another process works on this directory") {
		t.Fatalf("its first line is %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
			continue // The rest of its log keeps no writer waiting.
		}
	}()
	if _, err := os.Stat(labels); !os.IsNotExist(err) {
		t.Errorf("labels beside another process: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, func() string {
		text, _ := os.ReadFile(labels)
		return unless(strings.Contains(string(text), "nvidia.com/gpu.count=8\n"), string(text))
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
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
