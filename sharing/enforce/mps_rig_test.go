package enforce

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// node is a node with a fake nvidia-cuda-mps-control.
type node struct {
	t       *testing.T
	dir     string
	limiter *Limiter
	notices chan notice
	// answer bounds a command, if not 0.
	answer time.Duration
	// end ends the Keeper.
	end func()
}

// notice is a change of a daemon's state, as it is logged.
type notice struct {
	GPU      string
	State    State
	Reason   string
	Restarts int
}

// reader is a log that reads the changes of state in it.
type reader struct {
	slog.Handler
	notices chan notice
}

func (*reader) Enabled(context.Context, slog.Level) bool { return true }

func (r *reader) Handle(_ context.Context, record slog.Record) error {
	if record.Message != "MPS daemon" {
		return nil
	}
	with := map[string]slog.Value{}
	record.Attrs(func(a slog.Attr) bool {
		with[a.Key] = a.Value
		return true
	})
	r.notices <- notice{
		with["gpu"].String(), State(with["state"].String()), with["reason"].String(), int(with["restarts"].Int64()),
	}
	return nil
}

const gpuA, gpuB = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"

func newNode(t *testing.T, c config.Enforce) *node {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("MPS is on Linux only")
	}
	// t.TempDir's path is too long for a socket.
	dir, err := os.MkdirTemp("", "mps") //nolint:usetesting // See above.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir, notices: make(chan notice, 100)}
	n.start()
	n.begin(c)
	t.Cleanup(func() {
		n.end()
		n.leaks()
	})
	return n
}

// begin starts the plugin's side, as a new process does.
func (n *node) begin(c config.Enforce) {
	n.t.Helper()
	n.limiter = New(Options{
		StateDir: n.dir, ShmDir: "/dev/shm/heddle", Log: slog.New(slog.DiscardHandler),
	})
	facts := &Facts{Driver: "570.86.15", MPS: true, MPSControl: fakeControl(n.t)}
	c.Memory, c.Compute = config.EnforceMPS, config.EnforceMPS
	if err := n.limiter.Configure(&c, facts); err != nil {
		n.t.Fatal(err)
	}
}

// leaks waits until no goroutine of the enforcer is left.
func (n *node) leaks() {
	n.t.Helper()
	ticker, deadline := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer ticker.Stop()
	stacks := make([]byte, 1<<20)
	for {
		text := string(stacks[:runtime.Stack(stacks, true)])
		if !strings.Contains(text, "enforce.(*daemon)") && !strings.Contains(text, "enforce.(*program)") {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			n.t.Fatalf("goroutines are left:\n%s", text)
		}
	}
}

// start starts a Keeper.
func (n *node) start() {
	ctx, cancel := context.WithCancel(context.Background())
	k := &Keeper{
		StateDir: n.dir, Log: slog.New(&reader{slog.DiscardHandler, n.notices}), control: fakeControl(n.t),
		pace: pace{
			follow: 5 * time.Millisecond,
			answer: 20 * time.Second, start: 60 * time.Second, stop: 500 * time.Millisecond, poll: 10 * time.Millisecond,
			health: 50 * time.Millisecond, first: time.Millisecond,
		},
	}
	if n.answer != 0 {
		k.pace.answer = n.answer
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := k.Run(ctx); err != nil && ctx.Err() == nil {
			n.t.Error(err)
		}
	}()
	n.end = func() {
		cancel()
		<-ended
	}
}

// await waits for a state of the daemon of GPU A.
func (n *node) await(state State) notice {
	n.t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case x := <-n.notices:
			if x.GPU == gpuA && x.State == state {
				return x
			}
		case <-timeout:
			n.t.Fatalf("the daemon never was %s", state)
		}
	}
}

// pids are the daemon's and its server's.
func (n *node) pids(gpu string) []int {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, "mps", gpu, "pids"))
	if err != nil {
		n.t.Fatal(err)
	}
	var pids []int
	for word := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			n.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// gone waits for the end of processes: one of another's children is a zombie
// for a moment.
func (n *node) gone(pids []int) {
	n.t.Helper()
	ticker, deadline := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer ticker.Stop()
	for len(alive(pids)) > 0 {
		select {
		case <-ticker.C:
		case <-deadline:
			n.t.Fatalf("still alive: %v", alive(pids))
		}
	}
}

// received are the commands to the daemon of GPU A since it started.
func (n *node) received() []string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.dir, "mps", gpuA, "log", "control.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (n *node) touch(gpu, name string) {
	n.t.Helper()
	path := filepath.Join(n.dir, "mps", gpu, name)
	if err := hostfile.Write(path, nil, 0o600, hostfile.Quick); err != nil {
		n.t.Fatal(err)
	}
}

// live is the container of pod p1, which runs with 30 percent of GPU A.
func live() Limit {
	l := *share("p1", gpuA, 30, 4096)
	l.By = Enforced{config.EnforceMPS, config.EnforceMPS}
	return l
}

// keep reports the live containers.
func (n *node) keep(all ...Limit) {
	n.t.Helper()
	if err := n.limiter.Keep(func() []Limit { return all }); err != nil {
		n.t.Fatal(err)
	}
}

func share(pod, gpu string, vcore int, mib int64) *Limit {
	return &Limit{
		Pod: pod, Container: "c", Policy: quota.FixedShare,
		GPUs: []GPU{{Share: allocation.Share{UUID: gpu, VCore: vcore, MemoryMiB: mib}, Index: 3, TotalMiB: 81559}},
	}
}

func (n *node) edits(l *Limit) *cdi.ContainerEdits {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	e, _, err := n.limiter.Edits(ctx, l)
	if err != nil {
		n.t.Fatal(err)
	}
	return e
}

// until waits for a condition of the daemon of GPU A, as the plugin reports it.
func (n *node) until(what string, ok func(*Daemon) bool) Daemon {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	for {
		all := n.limiter.Daemons()
		if i := slices.IndexFunc(all, func(d Daemon) bool { return d.GPU == gpuA }); i >= 0 && ok(&all[i]) {
			return all[i]
		}
		if !notify.Sleep(ctx, 5*time.Millisecond) {
			n.t.Fatalf("the daemon is never %s: %+v", what, all)
		}
	}
}

func running(d *Daemon) bool { return d.State == Running }

const fakeName = "nvidia-cuda-mps-control"

// fakes is where the stand-in for nvidia-cuda-mps-control is (test/mpscontrol).
// It is a program of its own, and not this one once more, since each command is
// a process, and one with the race detector takes a second to begin.
var fakes string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	fakes = dir
	m.Run()
}

// fakeControl builds the stand-in, the first time.
func fakeControl(t *testing.T) string {
	t.Helper()
	path := filepath.Join(fakes, fakeName)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "github.com/heddle-dev/heddle/test/mpscontrol").CombinedOutput()
	if err != nil {
		t.Fatalf("build of the stand-in: %v\n%s", err, out)
	}
	return path
}

// alive returns the processes of a fake daemon that are not zombies.
func alive(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
