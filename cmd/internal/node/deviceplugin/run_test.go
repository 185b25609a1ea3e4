package deviceplugin

import (
	"bytes"
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/kubelet"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/programtest"
)

const dgx = "../../../../test/machines/dgx-h100.json"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return program.Run(ctx, Name, "dev", New("dev"), args, stdout, stderr)
}

func TestMistakes(t *testing.T) {
	dir, bad := t.TempDir(), programtest.Half(t, machines.Dump(t, "dgx-h100"))
	root := filepath.Dir(kubelet.Start(t, kubelet.Dir(t)).PluginDir())
	programtest.Run(t, "heddle-device-plugin", run, program.ErrUsage, []programtest.Case{
		{Name: "bad list of withdrawn nodes", Args: []string{"--withdrawn-nodes=list"}, Err: program.ErrUsage, Stderr: "not namespace/name"},
		{Name: "bad strategy", Args: []string{"--device-list-strategy=volume-mounts"}, Err: program.ErrUsage, Stderr: "neither cdi nor envvar"},
		{Name: "short interval", Args: []string{"--interval=1ms"}, Err: program.ErrUsage, Stderr: "less than 1s"},
		{Name: "no IMEX channel", Args: []string{"--imex-channels=0,x"}, Err: program.ErrUsage, Stderr: `--imex-channels: invalid IMEX channel "x"`},
		{Name: "no way to ask for channels", Args: []string{"--imex-request=label"}, Err: program.ErrUsage, Stderr: `--imex-request: "label" is neither all nor annotation`},
		{Name: "no channels to ask for", Args: []string{"--imex-request=annotation"}, Err: program.ErrUsage, Stderr: "annotation needs --imex-channels"},
		{
			Name: "channels by request, and no CDI", Args: []string{"--imex-request=annotation", "--imex-channels=0", "--device-list-strategy=envvar"},
			Err: program.ErrUsage, Stderr: "annotation needs --device-list-strategy=cdi",
		},
		{Name: "machine file cut in half", Args: []string{"--machine", bad, "--state-dir", dir}, Stderr: "half.json"},
		{Name: "no machine file", Args: []string{"--machine", bad + ".x", "--state-dir", dir}, Stderr: "half.json.x"},
		{Name: "bad configuration", Args: []string{"--machine", dgx, "--state-dir", dir, "--config", programtest.Config(t, "mode: nativ\n")}, Stderr: "cluster-config:1"},
		{Name: "bad address", Args: []string{"--machine", dgx, "--kubelet-dir", root, "--state-dir", dir, "--cdi-dir", dir, "--metrics-address", "x.invalid:1"}, Stderr: "x.invalid"},
	})
}

func TestDefaults(t *testing.T) {
	t.Setenv("NODE_NAME", "gpu-1")
	t.Setenv("KUBECONFIG", "")
	o := &options{}
	o.Register(flag.NewFlagSet("", flag.PanicOnError))
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

// start runs the daemon, with its files below dir, until stop is called or the test ends.
func start(t *testing.T, k *kubelet.Kubelet, dir, address string, log io.Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{
			"--machine", dgx, "--node-name", "gpu-1", "--kubelet-dir", filepath.Dir(k.PluginDir()),
			"--cdi-dir", filepath.Join(dir, "cdi"), "--state-dir", filepath.Join(dir, "state"),
			"--metrics-address", address,
		}, io.Discard, log)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// freeAddress is one that no program listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestServe runs the daemon on a fake kubelet and without an API server.
func TestServe(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	t.Setenv("KUBECONFIG", "")
	address := freeAddress(t)
	start(t, k, t.TempDir(), address, io.Discard)
	within, stop := context.WithTimeout(t.Context(), 5*time.Minute)
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
}

// logged is a log that reports when a line with a text has come.
type logged struct {
	text string
	seen chan struct{}
	once sync.Once
}

func (l *logged) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(l.text)) {
		l.once.Do(func() { close(l.seen) })
	}
	return len(line), nil
}

// TestHandOver: the next process starts while the old one serves, at the same address
// and with the same files. It waits, without a registration of its own, and serves
// when the old one has ended.
func TestHandOver(t *testing.T) {
	k := kubelet.Start(t, kubelet.Dir(t))
	t.Setenv("KUBECONFIG", "")
	const resource = "nvidia.com/gpu"
	within, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir, address := t.TempDir(), freeAddress(t)
	stop := start(t, k, dir, address, io.Discard)
	k.Wait(within, resource, func(s kubelet.State) bool { return len(s.Healthy) == 8 })
	waiting := &logged{text: "another process works on this directory", seen: make(chan struct{})}
	start(t, k, dir, address, waiting)
	select {
	case <-waiting.seen:
	case <-within.Done():
		t.Fatal("the next process does not wait")
	}
	// One that has no need to wait any more ends without an error, and leaves all as it is.
	third := &logged{text: waiting.text, seen: make(chan struct{})}
	stopThird := start(t, k, dir, address, third)
	<-third.seen
	stopThird()
	if s := k.State(resource); s.Registrations != 1 || s.Connected != 1 || len(s.Healthy) != 8 {
		t.Errorf("beside processes that wait the kubelet has %+v", s)
	}
	stop()
	began := time.Now()
	s := k.Wait(within, resource, func(s kubelet.State) bool { return s.Registrations == 2 && len(s.Healthy) == 8 })
	t.Logf("served again after %s", time.Since(began))
	if s.Connected != 1 {
		t.Errorf("%d plugins are connected", s.Connected)
	}
}
