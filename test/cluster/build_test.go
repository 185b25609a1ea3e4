//go:build linux

package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPinned(t *testing.T) {
	const gomod = "module x\n\nrequire a.b/c v1.2.3 // indirect\nrequire (\n\ta.b/d v0.1.0\n)\nreplace a.b/e => a.b/e v9.0.0\n"
	for module, want := range map[string]string{"a.b/c": "v1.2.3", "a.b/d": "v0.1.0", "a.b/e": "", "a.b": ""} {
		if got := pinned(gomod, module); got != want {
			t.Errorf("pinned(%s) = %q, want %q", module, got, want)
		}
	}
}

func TestKubernetesFlags(t *testing.T) {
	got := kubernetesFlags("v1.37.0")
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.37.0", "-X k8s.io/client-go/pkg/version.gitMinor=37",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestKeyCoversItsInputs(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "m", "go.mod"), "module m\n")
	p := part{name: "m", inputs: []string{filepath.Join(dir, "m")}, params: "-s"}
	key := func(p part, toolchain string) string {
		t.Helper()
		k, err := p.key(toolchain)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(p, "go1")
	if again := key(p, "go1"); again != first {
		t.Errorf("key is %s, then %s", first, again)
	}
	seen := map[string]string{first: "nothing changed"}
	check := func(what, k string) {
		t.Helper()
		if other, twice := seen[k]; twice {
			t.Errorf("%s: same key as when %s", what, other)
		}
		seen[k] = what
	}
	check("toolchain", key(p, "go2"))
	flags := p
	flags.params = "-w"
	check("flags", key(flags, "go1"))
	write(t, file, "module n\n")
	check("content", key(p, "go1"))
	write(t, filepath.Join(dir, "m", "main.go"), "")
	check("new file", key(p, "go1"))
	before := key(p, "go1")
	write(t, filepath.Join(dir, "m", "main_test.go"), "")
	if key(p, "go1") != before {
		t.Error("a test file changes the key")
	}
	p.inputs = []string{filepath.Join(dir, "absent")}
	if _, err := p.key("go1"); err == nil {
		t.Error("a missing input has a key")
	}
}

func TestEnsure(t *testing.T) {
	b := Builder{Cache: t.TempDir(), Log: t.Output()}
	dir := filepath.Join(b.Cache, "bin", "x-1")
	calls, fail := 0, errors.New("no compiler")
	p := part{name: "x", build: func(_ context.Context, out string) error {
		calls++
		write(t, filepath.Join(out, "x"), "")
		return fail
	}}
	if err := b.ensure(t.Context(), p, dir, &progress{log: t.Output()}); !errors.Is(err, fail) {
		t.Errorf("ensure: %v, want the build's error", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a failed build counts as built")
	}
	fail = nil
	for range 2 {
		if err := b.ensure(t.Context(), p, dir, &progress{log: t.Output()}); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "x")); err != nil || calls != 2 {
		t.Errorf("built %d times, want 2 (%v)", calls, err)
	}
}

// TestEstimate: what is left are the parts that come after, and this one's rest.
func TestEstimate(t *testing.T) {
	cores := runtime.NumCPU()
	all := progress{left: time.Duration(4*cores) * time.Minute}
	p := part{cost: time.Duration(10*cores) * time.Minute}
	for took, want := range map[time.Duration]string{
		0: "about 14 min left in all", 7 * time.Minute: "about 7 min left in all", time.Hour: "about 4 min left in all",
	} {
		if got := all.estimate(&p, took); got != want {
			t.Errorf("after %s: %q, want %q", took, got, want)
		}
	}
	if got := (&progress{}).estimate(&p, 10*time.Minute); got != "less than a minute left in all" {
		t.Errorf("at the end: %q", got)
	}
}

// TestDownloadsAreTriedAgain: a proxy that answers 503 is asked again; a program that does not
// compile is not.
func TestDownloadsAreTriedAgain(t *testing.T) {
	var asked atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer proxy.Close()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.25\n\nrequire example.com/absent v1.0.0\n")
	write(t, filepath.Join(dir, "go.sum"), "example.com/absent v1.0.0 h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"+
		"example.com/absent v1.0.0/go.mod h1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nimport _ \"example.com/absent\"\n\nfunc main() {}\n")
	b := Builder{Log: t.Output(), retries: []time.Duration{time.Millisecond, time.Millisecond}}
	env := []string{"GOPROXY=" + proxy.URL, "GONOSUMDB=*", "GOMODCACHE=" + filepath.Join(dir, "cache"), "GOTOOLCHAIN=local"}
	err := b.goBuild(t.Context(), dir, env, []string{"-o", filepath.Join(dir, "m"), "."})
	if err == nil || !strings.Contains(err.Error(), "503") || asked.Load() < 3 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
	asked.Store(0)
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { x }\n")
	write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.25\n")
	if err := b.goBuild(t.Context(), dir, env, []string{"-o", filepath.Join(dir, "m"), "."}); err == nil || isDownload(err) {
		t.Errorf("a program that does not compile: %v", err)
	}
}

func TestPrune(t *testing.T) {
	bin := t.TempDir()
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"x-0000000000aa": 30 * 24 * time.Hour, "x-0000000000bb": time.Hour, "x-0000000000cc": 30 * 24 * time.Hour,
		"y-0000000000aa": 30 * 24 * time.Hour,
	} {
		dir := filepath.Join(bin, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chtimes(dir, now.Add(-age), now.Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	prune(filepath.Join(bin, "x-0000000000cc"), "x", now)
	left, err := filepath.Glob(filepath.Join(bin, "*"))
	want := []string{"x-0000000000bb", "x-0000000000cc", "y-0000000000aa"}
	for i := range want {
		want[i] = filepath.Join(bin, want[i])
	}
	if diff := cmp.Diff(want, left); diff != "" || err != nil {
		t.Errorf("left (-want +got), %v:\n%s", err, diff)
	}
}

// TestPins: the repository's pins are there for every part that has flags from them.
func TestPins(t *testing.T) {
	b, err := Builder{Cache: t.TempDir()}.withDefaults()
	if err != nil {
		t.Skip(err)
	}
	for name, module := range map[string]string{
		"hyper": "k8s.io/kubernetes", "containerd": "github.com/containerd/containerd/v2", "runc": "github.com/opencontainers/runc",
		"cni": "github.com/containernetworking/plugins", "kwok": "sigs.k8s.io/kwok",
		"crio": crioModule,
	} {
		if b.pin(name, module) == "" {
			t.Errorf("build/%s/go.mod pins no %s", name, module)
		}
	}
	for _, p := range append(b.parts(), b.crioPart()) {
		if _, err := p.key("go"); err != nil {
			t.Errorf("key of %s: %v", p.name, err)
		}
	}
}

// TestVersionsAreHeddles: what the programs of a cluster, and the large tools, share with a module of heddle has
// the version that it has there. A package of another version has all that imports it compiled once more.
func TestVersionsAreHeddles(t *testing.T) {
	root, err := findSource()
	if err != nil {
		t.Skip(err)
	}
	const build = "test/cluster/build/"
	// Containers' devices are the runtime's business: it has its own CDI.
	runtime := []string{"tags.cncf.io/", "github.com/opencontainers/", "github.com/containerd/"}
	for _, tt := range []struct {
		folder, heddles string
		own             []string
	}{
		{"cmd/heddle-scheduler", ".", nil},
		{build + "containerd", ".", append(runtime, "go.opentelemetry.io/contrib/")},
		{build + "hyper", ".", runtime},
		{build + "kwok", ".", []string{"k8s.io/kubelet"}}, // A package that the later ones have no more.
		// Volcano requires these, for its controllers; its scheduler has next to nothing of them.
		{build + "workloads", "cmd/heddle-vc-scheduler", []string{
			"github.com/evanphx/json-patch/v5", "k8s.io/apiextensions-apiserver", "k8s.io/metrics", "sigs.k8s.io/controller-runtime",
		}},
		{"tools/controllergen", ".", nil},
		{"tools/helm", ".", nil},
		{"tools/promql", ".", []string{"golang.org/x/exp", "github.com/felixge/httpsnoop"}},
	} {
		text := readModule(t, filepath.Join(root, tt.folder))
		for line := range strings.Lines(readModule(t, filepath.Join(root, tt.heddles))) {
			fields := strings.Fields(line)
			if len(fields) < 2 || !strings.HasPrefix(fields[1], "v") ||
				slices.ContainsFunc(tt.own, func(prefix string) bool { return strings.HasPrefix(fields[0], prefix) }) {
				continue
			}
			if got := pinned(text, fields[0]); got != "" && got != fields[1] {
				t.Errorf("%s/go.mod has %s %s, %s/go.mod %s", tt.folder, fields[0], got, tt.heddles, fields[1])
			}
		}
	}
}

func readModule(t *testing.T, folder string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFindSource(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module "+module+"\n")
	write(t, filepath.Join(dir, "sub", "go.mod"), "module "+module+"/sub\n")
	t.Chdir(filepath.Join(dir, "sub"))
	got, err := findSource()
	if want, _ := filepath.EvalSymlinks(dir); err != nil || got != want && got != dir {
		t.Errorf("findSource = %s, %v, want %s", got, err, dir)
	}
}
