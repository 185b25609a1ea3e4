package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{"version": "v1", "cluster-config": "topology: {mode: custom}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig := writeKubeconfig(t, "http://127.0.0.1:1")
	for _, tt := range []struct {
		name           string
		args           []string
		env            map[string]string
		want           error
		stdout, stderr string // Parts that must be there; stderr also in the error.
	}{
		{name: "help", args: []string{"--help"}, want: flag.ErrHelp, stderr: "-tier-labels"},
		{name: "version", args: []string{"--version"}, stdout: "heddle-topo-master dev"},
		{name: "unknown flag", args: []string{"--nod-number=2"}, want: errUsage, stderr: "nod-number"},
		{name: "stray argument", args: []string{"x"}, want: errUsage, stderr: `unexpected argument "x"`},
		{name: "no namespace", want: errUsage, stderr: "--namespace"},
		{name: "unknown mode", args: []string{"--namespace=x", "--mode=torus"}, want: errUsage, stderr: `"torus" is none`},
		{name: "unknown export", args: []string{"--namespace=x", "--exports=labels,nfd"}, want: errUsage, stderr: `"nfd" is none`},
		{name: "Kueue without labels", args: []string{"--namespace=x", "--exports=kueue"}, want: errUsage, stderr: "name labels too"},
		{name: "a label key twice", args: []string{"--namespace=x", "--tier-labels=a/{tier},a/{tier0}"}, want: errUsage, stderr: "both make"},
		{name: "bad levels", args: []string{"--namespace=x", "--levels=rack=shelf"}, want: errUsage, stderr: "none of path"},
		{name: "levels of a preset", args: []string{"--namespace=x", "--mode=leaf", "--levels=rack=path"}, want: errUsage, stderr: "mode custom"},
		{name: "half a key pair", args: []string{"--namespace=x", "--tls-cert=a"}, want: errUsage, stderr: "go together"},
		{name: "tokens in the clear", args: []string{"--namespace=x", "--authenticate"}, want: errUsage, stderr: "in the clear"},
		{name: "QPS is no number", args: []string{"--namespace=x"}, env: map[string]string{"CLIENT_GO_QPS": "many"}, want: errUsage, stderr: `CLIENT_GO_QPS: "many"`},
		{name: "no API server", args: []string{"--namespace=x"}, stderr: "--kubeconfig"},
		{name: "custom without levels", args: []string{"--namespace=x", "--kubeconfig", kubeconfig, "--config", dir}, stderr: "--levels"},
		{name: "no such certificate", args: []string{"--namespace=x", "--kubeconfig", kubeconfig, "--tls-cert=/x", "--tls-key=/x"}, stderr: "read certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "")
			t.Setenv("POD_NAMESPACE", "")
			for key, value := range tt.env {
				t.Setenv(key, value)
			}
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), tt.args, &stdout, &stderr)
			said := stderr.String()
			if err != nil {
				said += err.Error()
			}
			if tt.want != nil && !errors.Is(err, tt.want) || tt.want == nil && tt.stderr != "" && err == nil {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(said, tt.stderr) {
				t.Errorf("stdout %q\nstderr and error %q", stdout.String(), said)
			}
		})
	}
}

func TestReadRate(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want rate
		err  string
	}{
		{"nothing", nil, rate{defaultQPS, defaultBurst}, ""},
		{"both", map[string]string{"CLIENT_GO_QPS": "50", "CLIENT_GO_BURST": "70"}, rate{50, 70}, ""},
		{"half a request", map[string]string{"CLIENT_GO_QPS": "0.5"}, rate{0.5, defaultBurst}, ""},
		{"the field's spelling", map[string]string{"CLIENT_GO_BRUST": "100"}, rate{defaultQPS, 100}, ""},
		{"both spellings, equal", map[string]string{"CLIENT_GO_BURST": "9", "CLIENT_GO_BRUST": "9"}, rate{defaultQPS, 9}, ""},
		{"both spellings, different", map[string]string{"CLIENT_GO_BURST": "9", "CLIENT_GO_BRUST": "10"}, rate{}, "set one of them"},
		{"empty", map[string]string{"CLIENT_GO_QPS": ""}, rate{}, "CLIENT_GO_QPS"},
		{"not a number", map[string]string{"CLIENT_GO_BRUST": "100x"}, rate{}, "CLIENT_GO_BRUST"},
		{"half a burst", map[string]string{"CLIENT_GO_BURST": "1.5"}, rate{}, "whole number"},
		{"zero", map[string]string{"CLIENT_GO_QPS": "0"}, rate{}, "above 0"},
		{"negative", map[string]string{"CLIENT_GO_BURST": "-1"}, rate{}, "above 0"},
		{"not a number at all", map[string]string{"CLIENT_GO_QPS": "NaN"}, rate{}, "above 0"},
		{"endless", map[string]string{"CLIENT_GO_QPS": "inf"}, rate{}, "above 0"},
		{"too large", map[string]string{"CLIENT_GO_BURST": "99999999999"}, rate{}, "whole number"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readRate(func(key string) (string, bool) {
				v, ok := tt.env[key]
				return v, ok
			})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseLevels(t *testing.T) {
	got, err := parseLevels("rack=path, pair=block:2")
	want := []fabric.Level{{Kind: "rack", By: fabric.ByPath}, {Kind: "pair", By: fabric.ByBlock, Nodes: 2}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; levels (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"rack", "=path", "rack=path,rack=leaf", "pair=block", "pair=block:two", "a=leaf:2"} {
		if _, err := parseLevels(bad); err == nil {
			t.Errorf("%q is no fault", bad)
		}
	}
}

func writeKubeconfig(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\n" +
		"clusters: [{name: c, cluster: {server: '" + url + "'}}]\ncontexts: [{name: x, context: {cluster: c}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The whole program: it serves, leads and labels; and it stops when told.
func TestTheProgram(t *testing.T) {
	s := apiserver.New()
	s.Put("nodes", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	s.Put("nodetopologies", &v1alpha1.NodeTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"},
		}},
		Spec: v1alpha1.NodeTopologySpec{Path: []string{"rack-7"}, PathSource: v1alpha1.SourceStatic},
	})
	api := httptest.NewServer(s)
	defer func() {
		s.Down(true)
		api.Close()
	}()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{
			"--kubeconfig", writeKubeconfig(t, api.URL), "--listen", address, "--namespace", "heddle-system",
			"--identity", "a", "--levels", "rack=path", "--tier-labels", "fabric.topograph.run/tier-{tier0}",
			"--log-level", "error",
		}, io.Discard, os.Stderr)
	}()
	labeled := func() bool {
		var n corev1.Node
		s.Read("nodes", "", "n1", &n)
		return n.Labels["fabric.topograph.run/tier-0"] == "rack-7"
	}
	const want = `[{"name":"rack-7","kind":"rack","child":[{"name":"n1","kind":"node","status":"Ready"}],"status":"Ready"}]` + "\n"
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for got := ""; got != want || !labeled(); {
		select {
		case err := <-done:
			t.Fatal("it ended:", err)
		case <-late:
			t.Fatalf("it answers %q, labeled %t", got, labeled())
		case <-tick.C:
		}
		if resp, err := http.Get(fmt.Sprintf("http://%s/node_group", address)); err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got = string(body)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
