package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// What a client of MPS gets (NVIDIA's "Appendix: Environment Variables").
const (
	envPipe = "CUDA_MPS_PIPE_DIRECTORY"
	// envThreads is percent of the threads; it only narrows the server's.
	envThreads = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	// envPinned is "0=4096M": what each process may have of its first GPU.
	envPinned = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	// envPriority is 0, or 1 for below normal.
	envPriority = "CUDA_MPS_CLIENT_PRIORITY"
)

const (
	// containerPipe is CUDA's default directory for MPS: a process
	// without heddle's environment finds the daemon too, and gets the daemon's
	// limits.
	containerPipe = "/tmp/nvidia-mps"
	// containerShm: client and server share memory there.
	containerShm = "/dev/shm"
)

// longestSocket is the longest path in sockaddr_un, and longestName the longest name
// that the daemon makes in its directory (control_privileged).
const (
	longestSocket = 107
	longestName   = len("/control_privileged")
)

// statusPoll is the interval at which a container's start reads the status of its daemon.
const statusPoll = 20 * time.Millisecond

// mps has a Keeper run one control daemon for each GPU that has clients.
type mps struct {
	dir, shm string
	log      *slog.Logger

	mu sync.Mutex // guards what follows
	// path and multiUser are the configuration.
	path      string
	multiUser bool
	// gpus are the GPUs with clients, by UUID.
	gpus map[string]clients
	// wanted was written last. Until the live containers are known
	// (synced), the daemons of an earlier process stay.
	wanted          wantedDaemons
	written, synced bool
	// lastAlive is the time when the Keeper was last seen.
	lastAlive time.Time
}

// clients are the containers on a GPU, by [Limit.key].
type clients map[string]client

// client is a container on a GPU.
type client struct {
	// index is the GPU's, for people.
	index  int
	uid    int64
	limits daemonLimits
	// memory reports that MPS limits it, and not another enforcer.
	memory bool
}

func newMPS(dir, shm string, log *slog.Logger) *mps {
	m := &mps{dir: dir, shm: shm, log: log, gpus: make(map[string]clients)}
	var err error
	if m.wanted, err = readWanted(dir); err != nil {
		log.Warn("list of MPS daemons is not read", "err", err)
	}
	m.written = err == nil
	return m
}

func (m *mps) edits(ctx context.Context, l *Limit, _ *settings) (*cdi.ContainerEdits, error) {
	if len(l.GPUs) != 1 {
		// One daemon per GPU, so that a fault or a limit stays on its GPU;
		// and CUDA connects to one daemon.
		return nil, fmt.Errorf("mps: a container with shares of %d GPUs: CUDA can use one MPS daemon, "+
			"and each GPU has its own; request one GPU, or use sgpu.enforce.compute preload or none", len(l.GPUs))
	}
	c := &l.GPUs[0]
	if err := m.admit(l); err != nil {
		return nil, fmt.Errorf("mps: %w", err)
	}
	if err := m.prepare(ctx, c.Share.UUID); err != nil {
		return nil, fmt.Errorf("mps: GPU %d: %w", c.Index, err)
	}
	own := clientOf(l)
	env := []string{envPipe + "=" + containerPipe, envThreads + "=" + strconv.Itoa(own.limits.Percent)}
	if own.memory {
		env = append(env, fmt.Sprintf("%s=0=%dM", envPinned, c.Share.MemoryMiB))
	}
	priority := "0"
	if l.Policy == quota.BestEffort || l.Priority < 0 {
		priority = "1"
	}
	return &cdi.ContainerEdits{
		Env: append(env, envPriority+"="+priority),
		Mounts: []*cdi.Mount{
			mount(pipeDir(m.dir, c.Share.UUID), containerPipe, "rw", "nosuid", "nodev", "noexec"),
			mount(m.shm, containerShm, "rw", "nosuid", "nodev", "noexec"),
		},
	}, nil
}

// admit adds a container to the clients of its GPU, or rejects it.
func (m *mps) admit(l *Limit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &l.GPUs[0]
	multiUser := m.multiUser
	status, err := m.statusLocked()
	if d := status.daemon(c.Share.UUID); err == nil && d != nil {
		multiUser = d.MultiUser // A daemon has the configuration of its start.
	}
	if err := m.check(c.Share.UUID); err != nil {
		return err
	}
	gpu := m.gpus[c.Share.UUID]
	own := clientOf(l)
	for _, key := range slices.Sorted(maps.Keys(gpu)) {
		if other := gpu[key]; key != l.key() && other.uid != own.uid && !multiUser {
			return fmt.Errorf("GPU %d has clients of user %d (%s), and user %d would wait "+
				"until they are gone: one MPS server is of one user, unless sgpu.enforce.mpsMultiUser is on",
				c.Index, other.uid, key, own.uid)
		}
	}
	m.add(l, own)
	return nil
}

// add adds a container to the clients of its GPU. m.mu is held.
func (m *mps) add(l *Limit, c client) {
	uuid := l.GPUs[0].Share.UUID
	if m.gpus[uuid] == nil {
		m.gpus[uuid] = clients{}
	}
	m.gpus[uuid][l.key()] = c
}

func clientOf(l *Limit) client {
	c := &l.GPUs[0]
	t := client{
		index: c.Index, limits: daemonLimits{Percent: quota.Whole, MemoryMiB: max(c.TotalMiB, c.Share.MemoryMiB)},
		memory: l.By.Memory == config.EnforceMPS,
	}
	if l.UID != nil {
		t.uid = *l.UID
	}
	if l.By.Compute == config.EnforceMPS {
		t.limits.Percent = l.percent(c)
	}
	if t.memory {
		t.limits.MemoryMiB = c.Share.MemoryMiB
	}
	return t
}

// limits returns the largest that a client was granted: a process that unsets its
// environment gets them.
func (c clients) limits() daemonLimits {
	var most daemonLimits
	memory := false
	for _, t := range c {
		most.Percent = max(most.Percent, t.limits.Percent)
		most.MemoryMiB = max(most.MemoryMiB, t.limits.MemoryMiB)
		memory = memory || t.memory
	}
	if !memory {
		most.MemoryMiB = 0
	}
	return most
}

// index is the GPU's number.
func (c clients) index() int {
	for _, t := range c {
		return t.index
	}
	return -1
}

// check returns why no daemon can run for a GPU. m.mu is held.
func (m *mps) check(uuid string) error {
	switch pipe := pipeDir(m.dir, uuid); {
	case m.gpus[uuid] != nil:
	case m.path == "":
		return errors.New("the node no longer has nvidia-cuda-mps-control")
	case len(pipe)+longestName > longestSocket:
		return fmt.Errorf("the state directory's path is too long for sockets: %s", pipe)
	}
	return nil
}

// prepare requests a GPU's daemon and waits until it has the limits of its clients.
func (m *mps) prepare(ctx context.Context, uuid string) error {
	m.mu.Lock()
	err := m.publish()
	m.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		done, err := m.ready(uuid)
		if done {
			return err
		}
		if !notify.Sleep(ctx, statusPoll) {
			return fmt.Errorf("%w: MPS daemon %w: %w", ErrNotReady, err, context.Cause(ctx))
		}
	}
}

var errStarting = errors.New("is starting")

// ready reports whether a daemon has the limits of its clients, or cannot take
// them (done with an error). Otherwise the error is the reason why not yet.
func (m *mps) ready(uuid string) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gpu := m.gpus[uuid]
	if gpu == nil {
		return true, errors.New("the container is gone")
	}
	status, err := m.statusLocked()
	if err != nil {
		return false, fmt.Errorf("is broken: %w", err)
	}
	d := status.daemon(uuid)
	switch {
	case status.Error != "":
		return false, errors.New(status.Error)
	case status.Generation < m.wanted.Generation || d == nil:
		return false, errStarting
	case d.State == Running && d.limits() == gpu.limits():
		return true, nil
	case d.State == Running && d.Reason != "":
		return true, fmt.Errorf("%w: MPS daemon: %s", ErrNotReady, d.Reason)
	case d.Reason != "":
		return false, fmt.Errorf("is %s: %s", d.State, d.Reason)
	}
	return false, errStarting
}

// publish writes the wanted daemons. The caller holds m.mu.
func (m *mps) publish() error {
	next := wantedDaemons{Generation: max(m.wanted.Generation+1, time.Now().UnixNano())}
	for _, uuid := range slices.Sorted(maps.Keys(m.gpus)) {
		gpu := m.gpus[uuid]
		next.GPUs = append(next.GPUs, wantedDaemon{uuid, gpu.index(), m.multiUser, gpu.limits()})
	}
	if !m.synced {
		for _, old := range m.wanted.GPUs {
			if m.gpus[old.GPU] == nil {
				next.GPUs = append(next.GPUs, old)
			}
		}
	}
	if m.written && slices.Equal(next.GPUs, m.wanted.GPUs) {
		return nil
	}
	if err := writeShared(m.dir, wantedFile, &next); err != nil {
		m.written = false
		return err
	}
	m.wanted, m.written = next, true
	return nil
}

// keep makes the live containers the clients: daemons of GPUs without clients stop.
func (m *mps) keep(live func() []Limit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.gpus
	m.gpus = make(map[string]clients)
	for _, l := range live() {
		if len(l.GPUs) != 1 {
			continue // It was rejected at its start.
		}
		admitted, starts := before[l.GPUs[0].Share.UUID][l.key()]
		switch {
		case l.By.Uses(config.EnforceMPS):
			m.add(&l, clientOf(&l))
		case l.By == (Enforced{}) && starts:
			m.add(&l, admitted)
		}
	}
	if m.synced = true; len(m.gpus) == 0 && len(m.wanted.GPUs) == 0 {
		return nil // A node without MPS has no files of it.
	}
	return m.publish()
}

// errNoKeeper is the error while no [Keeper] runs.
var errNoKeeper = errors.New("heddle-mps does not run, and its daemons ended with it")

// statusLocked reads the Keeper's status. m.mu is held.
func (m *mps) statusLocked() (daemonStatus, error) {
	if !hostfile.Locked(filepath.Join(m.dir, aliveDir)) {
		return daemonStatus{}, errNoKeeper
	}
	m.lastAlive = time.Now()
	var status daemonStatus
	err := readShared(m.dir, statusFile, &status)
	return status, err
}

// daemons returns the states of the daemons of GPUs with clients, by UUID.
func (m *mps) daemons() []Daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.gpus) == 0 {
		return nil
	}
	status, fault := m.statusLocked()
	if fault != nil {
		_ = readShared(m.dir, statusFile, &status) // What the last one wrote.
	}
	list := make([]Daemon, 0, len(m.gpus))
	for _, uuid := range slices.Sorted(maps.Keys(m.gpus)) {
		gpu := m.gpus[uuid]
		one := Daemon{GPU: uuid, State: Starting}
		if d := status.daemon(uuid); d != nil {
			one = *d
		}
		if one.State == Running {
			one.LastRunning = time.Now()
		}
		if fault != nil {
			one.fail(fault.Error(), m.lastAlive)
		}
		limits := gpu.limits()
		one.Index, one.Percent, one.MemoryMiB, one.Consumers = gpu.index(), limits.Percent, limits.MemoryMiB, len(gpu)
		one.Since, one.LastRunning = one.Since.UTC(), one.LastRunning.UTC()
		list = append(list, one)
	}
	return list
}

// fail notes that a daemon ended with its Keeper, which was last seen at a time.
func (d *Daemon) fail(reason string, seen time.Time) {
	if d.State == Running {
		d.LastRunning = seen
		if seen.Before(d.Since) {
			d.LastRunning = d.Since
		}
		d.Since = d.LastRunning
	}
	d.State, d.Reason, d.LastError = Broken, reason, reason
	d.Restarts++
}

// pipeDir returns a GPU's directory for sockets.
func pipeDir(dir, uuid string) string { return filepath.Join(dir, uuid, "pipe") }
