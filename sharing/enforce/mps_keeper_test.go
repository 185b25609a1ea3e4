package enforce

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
)

// The daemons go on while the plugin is away, with the options of their start. The
// next plugin ends what nothing needs any more.
func TestMPSGoesOnWithoutThePlugin(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.edits(share("p1", gpuA, 30, 4096))
	n.edits(share("p2", gpuB, 30, 4096))
	kept, unused := n.pids(gpuA), n.pids(gpuB)

	n.begin(config.Enforce{MPSMultiUser: true})
	n.edits(share("p3", gpuA, 60, 8192)) // Before it knows the containers that run.
	if got := alive(unused); len(got) != len(unused) {
		t.Errorf("alive before the plugin knows its containers: %v of %v", got, unused)
	}
	n.keep(live())
	n.gone(unused)
	if diff := cmp.Diff(kept, n.pids(gpuA)); diff != "" {
		t.Errorf("PIDs (-before +after):\n%s", diff)
	}
	if got := n.limiter.Daemons(); len(got) != 1 || got[0].State != Running || got[0].Restarts != 0 || got[0].MultiUser {
		t.Errorf("daemons %+v", got)
	}
	n.keep()
	n.gone(kept)
}

// A Keeper that ends takes its daemons along. That is reported, also by the next one.
func TestMPSWhenTheKeeperEnds(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.edits(share("p1", gpuA, 30, 4096))
	pids := n.pids(gpuA)
	n.end()
	if got := alive(pids); len(got) > 0 {
		t.Errorf("still alive: %v", got)
	}
	got := n.limiter.Daemons()[0]
	if got.State != Broken || got.Reason != errNoKeeper.Error() || got.Restarts != 1 || got.LastRunning.IsZero() {
		t.Errorf("without a Keeper: %+v", got)
	}
	n.start()
	again := n.until("running", running)
	if again.Restarts != 1 || again.LastError != "heddle-mps was started again" || again.Reason != "" {
		t.Errorf("with another Keeper: %+v", again)
	}
	n.edits(share("p1", gpuA, 30, 4096))
}

// A daemon that an earlier process left behind is ended.
func TestMPSEndsALeftover(t *testing.T) {
	n := newNode(t, config.Enforce{})
	dir := filepath.Join(n.dir, "mps", gpuA)
	p := program{path: fakeControl(t), gpu: gpuA, pipe: filepath.Join(dir, "pipe"), log: filepath.Join(dir, "log"), answer: usualPace().start}
	for _, d := range []string{p.pipe, p.log} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old, err := p.start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer old.signal(syscall.SIGKILL)
	for {
		if _, err := p.percent(t.Context()); err == nil {
			break
		}
	}
	n.edits(share("p1", gpuA, 30, 4096))
	if <-old.done; old.err.Error() != "exit status 0" {
		t.Errorf("it was not asked to quit: %v", old.err)
	}
}

// A file that cannot be used leaves the daemons as they are, and containers wait.
func TestMPSOfAnInvalidFile(t *testing.T) {
	n := newNode(t, config.Enforce{})
	n.edits(share("p1", gpuA, 30, 4096))
	pids := n.pids(gpuA)
	path := filepath.Join(n.dir, "mps", wantedFile)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for {
		var s daemonStatus
		if err := readShared(filepath.Join(n.dir, "mps"), statusFile, &s); err == nil && strings.Contains(s.Error, "unexpected end") {
			break
		}
	}
	if got := alive(pids); len(got) != len(pids) {
		t.Errorf("of %v are alive: %v", pids, got)
	}
	n.begin(config.Enforce{})
	n.keep(live())
	n.edits(share("p2", gpuA, 60, 8192))
	if diff := cmp.Diff(pids, n.pids(gpuA)); diff != "" {
		t.Errorf("PIDs (-before +after):\n%s", diff)
	}
}

func TestReadWanted(t *testing.T) {
	one := func(fields string) string { return `{"generation":1,"gpus":[{` + fields + `}]}` }
	const good = `"gpu":"GPU-1","index":3,"multiUser":true,"percent":30,"memoryMiB":4096`
	for _, tt := range []struct{ name, text, fault string }{
		{"good", one(good) + "\n", ""},
		{"two", `{"gpus":[{` + good + `},{` + good + `}]}`, "duplicate GPU GPU-1"},
		{"empty", "", "unexpected end"},
		{"cut off", one(good)[:40], "unexpected end"},
		{"an array", "[]", "cannot unmarshal"},
		{"no GPU", one(`"percent":30`), "invalid GPU"},
		{"a GPU above", one(`"gpu":"..","percent":30`), "invalid GPU"},
		{"a GPU elsewhere", one(`"gpu":"../x","percent":30`), "invalid GPU"},
		{"no percent", one(`"gpu":"GPU-1"`), "invalid percent 0"},
		{"much", one(`"gpu":"GPU-1","percent":101`), "invalid percent 101"},
		{"negative memory", one(`"gpu":"GPU-1","percent":1,"memoryMiB":-1`), "invalid memoryMiB"},
		{"not a number", one(`"gpu":"GPU-1","percent":1e99`), "cannot unmarshal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, wantedFile), []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readWanted(dir)
			if tt.fault == "" {
				want := wantedDaemons{1, []wantedDaemon{{"GPU-1", 3, true, daemonLimits{30, 4096}}}}
				if err != nil || got.Generation != want.Generation || !slices.Equal(got.GPUs, want.GPUs) {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.fault) || len(got.GPUs) > 0 {
				t.Errorf("got %+v, %v; want %s", got, err, tt.fault)
			}
		})
	}
}
