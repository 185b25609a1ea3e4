package enforce

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

// Keeper runs the MPS control daemons of a node, apart from heddle-device-plugin, so that CUDA
// programs go on while the plugin is updated. The plugin writes the wanted daemons and their limits
// to a file in StateDir; the Keeper follows it and writes the daemons' states to another file.
type Keeper struct {
	// StateDir is the plugin's. Root becomes the root of MPS's programs, which must
	// have StateDir under the same path; empty runs them in the process's root.
	StateDir, Root string
	Log            *slog.Logger

	control string // path of nvidia-cuda-mps-control; empty: it is searched
	pace    pace
	dir     string
	updated notify.Signal // a daemon's state changed, or a daemon ended

	mu sync.Mutex // guards what follows
	// generation was read last, fault is the reason why it was not used.
	generation int64
	fault      string
	daemons    map[string]*daemon
	// last are the states that an earlier Keeper wrote: its daemons ended with it.
	last daemonStatus
}

// Run follows the file until ctx ends, and then ends all daemons. It waits for
// the end of another Keeper of the directory.
func (k *Keeper) Run(ctx context.Context) error {
	k.dir = filepath.Join(k.StateDir, "mps")
	k.updated, k.daemons = notify.New(), map[string]*daemon{}
	if k.pace == (pace{}) {
		k.pace = usualPace()
	}
	// Servers run as their clients' users and pass through it.
	if err := os.MkdirAll(k.dir, 0o755); err != nil { //nolint:gosec // See above.
		return fmt.Errorf("directory of MPS: %w", err)
	}
	lock, err := hostfile.TakeLock(ctx, k.dir, k.Log)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := readShared(k.dir, statusFile, &k.last); err != nil {
		k.Log.Warn("status of the last process is not read", "err", err)
	}
	var group sync.WaitGroup
	defer group.Wait()
	k.reconcile(ctx, &group)
	k.report()
	alive, err := hostfile.TakeLock(ctx, filepath.Join(k.dir, aliveDir), k.Log)
	if err != nil {
		return err
	}
	defer func() { _ = alive.Close() }() // Before the daemons end: no container starts from then on.
	ticker := time.NewTicker(k.pace.follow)
	defer ticker.Stop()
	for {
		k.reconcile(ctx, &group)
		k.report()
		select {
		case <-k.updated:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// reconcile starts, updates and stops daemons as the plugin's file has them. A
// file that cannot be used leaves them as they are.
func (k *Keeper) reconcile(ctx context.Context, group *sync.WaitGroup) {
	wanted, err := readWanted(k.dir)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		if k.fault != err.Error() {
			k.Log.Error("list of MPS daemons is invalid", "err", err)
		}
		k.fault = err.Error()
		return
	}
	k.fault = ""
	names := map[string]bool{}
	for i := range wanted.GPUs {
		w := &wanted.GPUs[i]
		names[w.GPU] = true
		if d := k.daemons[w.GPU]; d != nil {
			d.request(w.daemonLimits) // Without effect if it is being stopped: it starts again then.
			continue
		}
		d := k.newDaemon(w)
		own, cancel := context.WithCancel(ctx)
		d.cancel = cancel
		k.daemons[w.GPU] = d
		group.Go(func() { k.supervise(own, d) })
	}
	for uuid, d := range k.daemons {
		if !names[uuid] {
			d.stop()
		}
	}
	k.last, k.generation = daemonStatus{}, wanted.Generation
}

func (k *Keeper) newDaemon(w *wantedDaemon) *daemon {
	dir := filepath.Join(k.dir, w.GPU)
	status := Daemon{GPU: w.GPU}
	if last := k.last.daemon(w.GPU); last != nil && last.State != Stopped {
		status = *last
		status.fail("heddle-mps was started again", time.Now())
		status.Percent, status.MemoryMiB = 0, 0
	}
	status.Index, status.MultiUser = w.Index, w.MultiUser
	return &daemon{
		program: program{
			root: k.Root, gpu: w.GPU, pipe: pipeDir(k.dir, w.GPU), log: filepath.Join(dir, "log"),
			multiUser: w.MultiUser, answer: k.pace.answer,
		},
		control: k.control, pace: k.pace, log: k.Log, status: status, want: w.daemonLimits,
		changed: notify.New(), updated: k.updated,
	}
}

// supervise is a daemon's goroutine.
func (k *Keeper) supervise(ctx context.Context, d *daemon) {
	defer d.cancel()
	d.run(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.daemons, d.program.gpu)
	k.updated.Notify()
}

// report writes the states of all daemons.
func (k *Keeper) report() {
	k.mu.Lock()
	defer k.mu.Unlock()
	status := daemonStatus{Generation: k.generation, Error: k.fault, Daemons: []Daemon{}}
	for _, d := range k.daemons {
		status.Daemons = append(status.Daemons, d.state())
	}
	slices.SortFunc(status.Daemons, func(a, b Daemon) int { return strings.Compare(a.GPU, b.GPU) })
	if err := writeShared(k.dir, statusFile, &status); err != nil {
		k.Log.Error("status of MPS daemons is not written", "err", err)
	}
}
