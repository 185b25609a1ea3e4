package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/programtest"
)

func TestMistakes(t *testing.T) {
	programtest.RunOnly(t, run, []programtest.Case{
		{Name: "no daemon", Err: program.ErrUsage, Stderr: "Usage: heddle-node DAEMON"},
		{Name: "help", Args: []string{"--help"}, Err: flag.ErrHelp, Stderr: "device-plugin, feature-discovery, mps, topo-worker"},
		{Name: "version", Args: []string{"--version"}, Stdout: "heddle-node dev"},
		{Name: "unknown daemon", Args: []string{"topo-master"}, Err: program.ErrUsage, Stderr: `unknown daemon "topo-master"`},
		{Name: "a daemon's version", Args: []string{"topo-worker", "--version"}, Stdout: "heddle-node topo-worker dev"},
		{
			Name: "a bad flag of a daemon", Args: []string{"device-plugin", "--interval=1ms"}, Err: program.ErrUsage,
			Stderr: "heddle-node device-plugin: --interval: 1ms is less than 1s",
		},
	})
}

// The logs of every daemon, the labels and what the device plugin reports use the words of
// the node's vendor, at every log level.
func TestWordsOfTheVendor(t *testing.T) {
	foreign := regexp.MustCompile(`(?i)nvidia|nvml|nvlink|nvswitch|cuda|\bxid|\bmig\b`)
	for _, tt := range []struct{ name, machine, config, label string }{
		{"AMD", "amd-mi300x", "", "amd.com/gpu.count=8\n"},
		{"AMD in partitions", "amd-mi300x-cpx", "", "amd.com/gpu.compute-memory-partition="},
		{"AMD in shares", "amd-mi210-two-hives", "mode: sgpu\n", "amd.com/gpu.sharing-strategy="},
		{"MetaX", "metax-c500-box", "", "metax-tech.com/gpu.product=MXC500\n"},
		{"MetaX in shares", "metax-c550-pcie", "mode: sgpu\n", "metax-tech.com/gpu.sharing-strategy="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			common := []string{
				"--machine", "../../test/machines/" + tt.machine + ".json", "--node-name", "n1", "--log-level", "debug",
				"--config", programtest.Config(t, "domains: {vendor: auto}\n"+tt.config),
			}
			text := map[string]string{}
			for _, daemon := range []string{"feature-discovery", "topo-worker"} {
				var out, log bytes.Buffer
				args := append([]string{daemon, "--dry-run"}, common...)
				if err := run(t.Context(), args, &out, &log); err != nil {
					t.Error(err)
				}
				text[daemon], text["log of "+daemon] = out.String(), log.String()
			}
			if !strings.Contains(text["feature-discovery"], tt.label) {
				t.Errorf("no label %s in %s", tt.label, text["feature-discovery"])
			}
			text["bindings"], text["log of device-plugin"] = bindings(t, common)
			for what, text := range text {
				if word := foreign.FindString(text); word != "" || text == "" && what != "log of topo-worker" {
					t.Errorf("%s: %q\n%s", what, word, text)
				}
			}
		})
	}
}

// bindings runs the device plugin until it is ready, and returns its report and its log.
func bindings(t *testing.T, common []string) (report, log string) {
	t.Helper()
	k, dir := kubelet.Start(t, kubelet.Dir(t)), t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	var stderr bytes.Buffer
	go func() {
		done <- run(ctx, append([]string{
			"device-plugin", "--metrics-address", address, "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"),
			"--kubeconfig", filepath.Join(dir, "none"),
		}, common...), io.Discard, &stderr)
	}()
	report = await(t, address)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return report, stderr.String()
}

// await returns the report of a device plugin that is ready.
func await(t *testing.T, address string) string {
	t.Helper()
	ticker, late := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
	defer ticker.Stop()
	for {
		if status, body := get("http://" + address + "/readyz"); status == http.StatusOK {
			_, body = get("http://" + address + report.Path)
			return body
		} else if status != 0 {
			t.Log(body)
		}
		select {
		case <-ticker.C:
		case <-late:
			t.Fatal("the device plugin is not ready")
		}
	}
}

// get returns an answer, or a status of 0.
func get(url string) (status int, body string) {
	answer, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	return answer.StatusCode, string(text)
}
