package main

import (
	"context"
	"crypto/tls"
	"errors"
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
	"k8s.io/client-go/util/cert"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/test/programtest"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

func TestRun(t *testing.T) {
	dir := programtest.Config(t, "topology: {mode: custom}\n")
	kubeconfig := writeKubeconfig(t, "http://127.0.0.1:1")
	programtest.Run(t, "heddle-topo-master", run, program.ErrUsage, []programtest.Case{
		{Name: "unknown export", Args: []string{"--namespace=x", "--exports=labels,nfd"}, Err: program.ErrUsage, Stderr: `unsupported --exports "nfd"`},
		{Name: "Kueue without labels", Args: []string{"--namespace=x", "--exports=kueue"}, Err: program.ErrUsage, Stderr: "name labels too"},
		{Name: "tokens in the clear", Args: []string{"--namespace=x", "--authenticate"}, Err: program.ErrUsage, Stderr: "in the clear"},
		{Name: "QPS is no number", Args: []string{"--namespace=x"}, Env: map[string]string{"CLIENT_GO_QPS": "many"}, Err: program.ErrUsage, Stderr: `CLIENT_GO_QPS: invalid number "many"`},
		{Name: "no API server", Args: []string{"--namespace=x"}, Stderr: "--kubeconfig"},
		{Name: "custom without levels", Args: []string{"--namespace=x", "--kubeconfig", kubeconfig, "--config", dir}, Stderr: "cluster-config:1: topology.levels: are missing"},
		{Name: "no such certificate", Args: []string{"--namespace=x", "--kubeconfig", kubeconfig, "--tls-dir=/x"}, Stderr: "read certificate"},
	})
}

func TestRates(t *testing.T) {
	for _, tt := range []struct {
		env        map[string]string
		ok         bool
		qps, burst int
	}{
		{nil, true, 100, 200},
		{map[string]string{"CLIENT_GO_QPS": "50", "CLIENT_GO_BURST": "70"}, true, 50, 70},
		{map[string]string{"CLIENT_GO_BRUST": "100"}, true, 100, 100},
		{map[string]string{"CLIENT_GO_BURST": "1.5"}, false, 0, 0},
		{map[string]string{"CLIENT_GO_QPS": "-1"}, false, 0, 0},
		{map[string]string{"CLIENT_GO_BURST": "99999999999999999999"}, false, 0, 0},
	} {
		qps, burst, err := rates(func(key string) string { return tt.env[key] })
		if (err == nil) != tt.ok || qps != tt.qps || burst != tt.burst {
			t.Errorf("%v: %d, %d, %v", tt.env, qps, burst, err)
		}
	}
}

// The GPUs that are counted have the configuration's names, with auto those of every maker.
func TestNamesOfGPUs(t *testing.T) {
	for _, tt := range []struct {
		name, yaml string
		want       []corev1.ResourceName
	}{
		{"the default", "{}", []corev1.ResourceName{"amd.com/gpu", "metax-tech.com/gpu", "nvidia.com/gpu"}},
		{"one vendor", "domains: {vendor: nvidia.com}", []corev1.ResourceName{"nvidia.com/gpu"}},
		{"one name for all", "{domains: {vendor: auto}, resources: {gpu: example.com/gpu}}", []corev1.ResourceName{"example.com/gpu"}},
		{"beside shares of that name", "resources: {sgpu: nvidia.com/gpu}", []corev1.ResourceName{"nvidia.com/gpu.exclusive"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse(map[string][]byte{
				config.KeyVersion: []byte("v1"), config.KeyCluster: []byte(tt.yaml),
			}, config.Uncompiled{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, gpus(&c.Cluster)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
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

// running is heddle-topo-master beside an API server with one Node, n1, whose
// report has a path.
type running struct {
	api  *apiserver.Server
	url  string
	done chan error
}

func launch(t *testing.T, args ...string) *running {
	t.Helper()
	s := apiserver.New()
	s.Put("nodes", &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	})
	s.Put("nodetopologies", &v1alpha1.NodeTopology{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "u1"},
		}},
		Spec: v1alpha1.NodeTopologySpec{Path: []string{"hall-1", "rack-7"}, PathSource: v1alpha1.SourceStatic},
	})
	api := httptest.NewServer(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p := &running{api: s, url: "http://" + address, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	args = append([]string{
		"--kubeconfig", writeKubeconfig(t, api.URL), "--listen", address, "--namespace", "heddle-system",
		"--log-level", "error",
	}, args...)
	go func() { p.done <- run(ctx, args, io.Discard, os.Stderr) }()
	t.Cleanup(func() {
		cancel()
		if err := <-p.done; err != nil {
			t.Error(err)
		}
		s.Down(true) // Ends what is left of the watches.
		api.Close()
	})
	return p
}

// answers waits until GET /node_group is want.
func (p *running) answers(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for got := ""; got != want; {
		select {
		case err := <-p.done:
			p.done <- err
			t.Fatal("it ended:", err)
		case <-late:
			t.Fatalf("it answers %q, want %q", got, want)
		case <-tick.C:
		}
		if resp, err := http.Get(p.url + "/node_group"); err == nil {
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got = string(body)
		}
	}
}

const (
	inRack = `[{"name":"rack-7","kind":"rack","child":[{"name":"n1","kind":"node","status":"Ready"}],"status":"Ready"}]` + "\n"
	inHall = `[{"name":"hall-1","kind":"hall","child":[` + `{"name":"rack-7","kind":"rack","child":[{"name":"n1","kind":"node","status":"Ready"}],"status":"Ready"}` +
		`],"status":"Ready"}]` + "\n"
)

// The whole program: it serves, leads and labels; and it stops with its context.
func TestTheProgram(t *testing.T) {
	p := launch(t, "--config", programtest.Config(t, "topology: {mode: custom, levels: [{kind: rack, by: path}]}\n"), "--exports", "topograph")
	p.answers(t, inRack)
	for path, want := range map[string]map[string]string{
		"/": {
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache",
			"Content-Type": "text/html; charset=utf-8",
		},
		"/node_group": {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "Heddle-Contact-Age": "0"},
	} {
		resp, err := http.Get(p.url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		for key, value := range want {
			got := resp.Header.Get(key)
			if key == "Heddle-Contact-Age" && got != "" { // Some seconds on a busy machine.
				continue
			}
			if got != value {
				t.Errorf("%s: %s is %q, want %q", path, key, got, value)
			}
		}
		if resp.Header.Get("Etag") == "" {
			t.Errorf("%s has no tag", path)
		}
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for {
		var n corev1.Node
		p.api.Read("nodes", "", "n1", &n)
		if n.Labels["fabric.topograph.run/tier-0"] == "rack-7" {
			return
		}
		select {
		case <-late:
			t.Fatalf("labels %v", n.Labels)
		case <-tick.C:
		}
	}
}

// The levels of the configuration are taken over while it runs; bad ones are
// not.
func TestLevelsOfTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		for file, text := range map[string]string{"version": "v1", "cluster-config": text} {
			// As a whole, as the kubelet does: a reader must see no half of it.
			if err := os.WriteFile(filepath.Join(dir, ".new"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("topology: {mode: custom, levels: [{kind: rack, by: path}]}")
	p := launch(t, "--config", dir, "--namespace=")
	p.answers(t, inRack)
	write("topology: {mode: custom, levels: [{kind: hall, by: path}, {kind: rack, by: path}]}")
	p.answers(t, inHall)
	write("topology: {mode: custom, levels: [{kind: rack, by: shelf}]}")
	write("topology: {mode: custom, levels: [{kind: rack, by: path}, {kind: pair, by: block, nodes: 2}]}")
	p.answers(t, inRack)
}

// A certificate that is renewed on the disk is served without a restart, and after one that is
// broken the last good one.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	write := func(host string) {
		t.Helper()
		pair, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
		if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "tls.crt"), pair, 0o600),
			os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	p := launch(t, "--tls-dir", dir)
	served := func(host string) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for late := time.After(time.Minute); ; {
			c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "http://"), &tls.Config{InsecureSkipVerify: true})
			if err == nil {
				err = c.ConnectionState().PeerCertificates[0].VerifyHostname(host)
				_ = c.Close()
			}
			if err == nil {
				return
			}
			select {
			case <-tick.C:
			case <-late:
				t.Fatalf("the certificate of %s is not served: %v", host, err)
			}
		}
	}
	served("first")
	write("second")
	served("second")
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	served("second")
}
