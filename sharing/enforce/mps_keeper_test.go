package enforce

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

// keeper runs one in the node's state directory.
func (n *node) keeper() (end func()) {
	n.t.Helper()
	listener, err := net.Listen("unix", n.dir+"/keeper")
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	k := &Keeper{StateDir: n.dir, Log: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(ended)
		if err := k.Run(ctx, listener); err != nil {
			n.t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// What the probes of heddle-mps ask.
func TestCheckKeeper(t *testing.T) {
	n := newNode(t, config.Enforce{})
	socket := n.dir + "/keeper"
	if err := CheckKeeper(t.Context(), socket, time.Minute); err == nil || !strings.Contains(err.Error(), "heddle-mps does not answer") {
		t.Errorf("before it runs: %v", err)
	}
	end := n.keeper()
	if err := CheckKeeper(t.Context(), socket, time.Minute); err != nil {
		t.Error(err)
	}
	end()
	if err := CheckKeeper(t.Context(), socket, time.Minute); err == nil {
		t.Error("one that has ended answers")
	}
}

func liveOn(pod, gpu string) Limit {
	l := *share(pod, gpu, 30, 4096)
	l.By = Enforced{config.EnforceMPS, config.EnforceMPS}
	return l
}

// The daemons of a Keeper go on while the plugin is away. The next one finds them, and
// ends what nothing needs any more.
func TestMPSGoesOnWithoutThePlugin(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.end()
	defer n.keeper()()
	n.begin(config.Enforce{}, n.dir+"/keeper")
	n.edits(share("p1", gpuA, 30, 4096))
	n.edits(share("p2", gpuB, 30, 4096))
	n.await(gpuA, Running)
	kept, unused := n.pids(gpuA), n.pids(gpuB)
	commands := len(n.received())

	n.end()
	if got := alive(slices.Concat(kept, unused)); len(got) != len(kept)+len(unused) {
		t.Fatalf("of %v and %v are alive without the plugin: %v", kept, unused, got)
	}

	n.begin(config.Enforce{}, n.dir+"/keeper")
	if err := n.limiter.Keep(t.Context(), []Limit{liveOn("p1", gpuA)}); err != nil {
		t.Fatal(err)
	}
	n.gone(unused)
	n.edits(share("p3", gpuA, 60, 8192))
	if diff := cmp.Diff(kept, n.pids(gpuA)); diff != "" {
		t.Errorf("PIDs (-before +after):\n%s", diff)
	}
	after := n.received()
	if len(after) <= commands || slices.ContainsFunc(after[1:], func(s string) bool { return strings.HasPrefix(s, "start") }) {
		t.Errorf("its log: %q", after)
	}
	if got := n.limiter.Daemons(); len(got) != 1 || got[0].State != Running || got[0].Restarts != 0 || got[0].Percent != 60 {
		t.Errorf("daemons %+v", got)
	}

	// The last consumer goes, while the plugin is there.
	n.limiter.starting = map[string]start{}
	if err := n.limiter.Keep(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	n.gone(kept)
}

// The Keeper may notice the end of a plugin's connections after the next plugin's first
// request.
func TestKeeperEndsWhatAnEarlierPluginHad(t *testing.T) {
	n := newNode(t, config.Enforce{})
	defer n.keeper()()
	earlier, next := newRemote(n.dir+"/keeper"), newRemote(n.dir+"/keeper")
	for _, gpu := range []string{gpuA, gpuB} {
		own := n.dir + "/mps/" + gpu
		if err := errors.Join(os.MkdirAll(own+"/pipe", 0o750), os.MkdirAll(own+"/log", 0o750)); err != nil {
			t.Fatal(err)
		}
	}
	program := func(gpu string) *program {
		own := n.dir + "/mps/" + gpu
		return &program{gpu: gpu, path: fakeControl(t), pipe: own + "/pipe", log: own + "/log", answer: 20 * time.Second}
	}
	unused, err := earlier.start(t.Context(), program(gpuA))
	if err != nil {
		t.Fatal(err)
	}
	own, err := next.start(t.Context(), program(gpuB))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.retain(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	<-unused.ended()
	select {
	case <-own.ended():
		t.Errorf("the plugin's own daemon has ended: %v", own.fault())
	default:
	}
	own.detach()
}

// Where the options of a daemon have changed while the plugin was away, a new one takes its place.
func TestMPSOfOtherOptionsStartsAgain(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.end()
	defer n.keeper()()
	n.begin(config.Enforce{}, n.dir+"/keeper")
	n.edits(share("p1", gpuA, 30, 4096))
	before := n.pids(gpuA)
	n.end()
	n.begin(config.Enforce{MPS: config.MPS{MultiUser: true}}, n.dir+"/keeper")
	n.edits(share("p1", gpuA, 30, 4096))
	n.gone(before)
	if got := n.received(); !slices.Contains(got, "start -f -multiuser-server on "+gpuA) {
		t.Errorf("its log: %q", got)
	}
}

// A Keeper that goes takes its daemons along. That is reported, and the next one has
// them again.
func TestMPSWhenTheKeeperGoes(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.end()
	end := n.keeper()
	n.begin(config.Enforce{}, n.dir+"/keeper")
	n.edits(share("p1", gpuA, 30, 4096))
	n.await(gpuA, Running)
	pids := n.pids(gpuA)
	end()
	n.gone(pids)
	if got := n.await(gpuA, Broken); !strings.Contains(got.Reason, "ended") && !strings.Contains(got.Reason, "heddle-mps") {
		t.Errorf("reason %q", got.Reason)
	}
	for !strings.Contains(n.await(gpuA, Broken).Reason, "heddle-mps does not answer") {
		continue
	}
	defer n.keeper()()
	n.await(gpuA, Running)
	n.edits(share("p1", gpuA, 30, 4096))
}

func TestKeeperRejects(t *testing.T) {
	n := newNode(t, config.Enforce{})
	defer n.keeper()()
	r := newRemote(n.dir + "/keeper")
	own := n.dir + "/mps/GPU-1"
	good := keptProgram{GPU: "GPU-1", Path: "/usr/bin/nvidia-cuda-mps-control", Pipe: own + "/pipe", Log: own + "/log"}
	for name, change := range map[string]func(*keptProgram){
		"no GPU": func(p *keptProgram) { p.GPU = "" }, "a GPU above": func(p *keptProgram) { p.GPU = ".." },
		"a GPU elsewhere": func(p *keptProgram) { p.GPU = "../x" }, "another program": func(p *keptProgram) { p.Path = "/bin/sh" },
		"a program somewhere": func(p *keptProgram) { p.Path = "nvidia-cuda-mps-control" },
		"a pipe elsewhere":    func(p *keptProgram) { p.Pipe = "/tmp/pipe" }, "a log above": func(p *keptProgram) { p.Log = own },
	} {
		p := good
		change(&p)
		answer, err := r.post(t.Context(), pathDaemons, &asked{keptProgram: p})
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", name, answer.Status)
		}
		_ = answer.Body.Close()
	}
	for _, body := range []string{"", "{", "[1]", `{"gpus": "all"}`, `{"gpu": "` + strings.Repeat("x", maxAsked) + `"}`} {
		for _, path := range []string{pathDaemons, pathRetain, pathSignal} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://keeper"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := r.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != http.StatusBadRequest {
				t.Errorf("%s of %.20q: %s", path, body, answer.Status)
			}
			_ = answer.Body.Close()
		}
	}
}
