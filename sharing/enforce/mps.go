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
	// containerPipe is where CUDA looks for MPS without a variable: a process
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

// mps keeps one control daemon for each GPU that has consumers.
type mps struct {
	dir, root, shm string
	pace           pace
	modes          ComputeModes
	launcher       launcher
	log            *slog.Logger
	changed        notify.Signal

	mu sync.Mutex // guards what follows
	// path, multiUser and exclusive are the configuration; a daemon has those
	// of its start.
	path                 string
	multiUser, exclusive bool
	gpus                 map[string]*mpsGPU
	// retained: daemons that an earlier process left and nothing needs are ended.
	retained bool
}

// mpsGPU is a GPU with MPS.
type mpsGPU struct {
	clients map[string]client
	daemon  *daemon
}

// client is a container on a GPU.
type client struct {
	uid    int64
	limits daemonLimits
	// memory reports that MPS limits it, and not another enforcer.
	memory bool
}

func (m *mps) edits(ctx context.Context, l *Limit) (*Edits, error) {
	if len(l.GPUs) != 1 {
		// One daemon per GPU, so that a fault or a limit stays on its GPU;
		// and CUDA connects to one daemon.
		return nil, fmt.Errorf("mps: a container with shares of %d GPUs: CUDA can use one MPS daemon, "+
			"and each GPU has its own; request one GPU, or use sgpu.enforce.compute preload or none", len(l.GPUs))
	}
	c := &l.GPUs[0]
	d, limits, err := m.admit(l)
	if err != nil {
		return nil, fmt.Errorf("mps: %w", err)
	}
	if err := d.limit(ctx, limits); err != nil {
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
	return &Edits{
		Env: append(env, envPriority+"="+priority),
		Mounts: []*cdi.Mount{
			mount(d.program.pipe, containerPipe, "rw", "nosuid", "nodev", "noexec"),
			mount(m.shm, containerShm, "rw", "nosuid", "nodev", "noexec"),
		},
	}, nil
}

// admit adds a container to the clients of its GPU, or rejects it.
func (m *mps) admit(l *Limit) (*daemon, daemonLimits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &l.GPUs[0]
	gpu, err := m.gpu(c)
	if err != nil {
		return nil, daemonLimits{}, err
	}
	own := clientOf(l)
	for _, key := range slices.Sorted(maps.Keys(gpu.clients)) {
		if other := gpu.clients[key]; key != l.key() && other.uid != own.uid && !gpu.daemon.program.multiUser {
			return nil, daemonLimits{}, fmt.Errorf("GPU %d has clients of user %d (%s), and user %d would wait "+
				"until they are gone: one MPS server is of one user, unless sgpu.enforce.mps.multiUser is on",
				c.Index, other.uid, key, own.uid)
		}
	}
	gpu.clients[l.key()] = own
	m.changed.Notify()
	return gpu.daemon, gpu.limits(), nil
}

func clientOf(l *Limit) client {
	c := &l.GPUs[0]
	t := client{
		limits: daemonLimits{Percent: quota.Whole, MemoryMiB: max(c.TotalMiB, c.Share.MemoryMiB)},
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

// limits are the largest that a client was granted: a process that unsets its
// environment gets them.
func (c *mpsGPU) limits() daemonLimits {
	var most daemonLimits
	memory := false
	for _, t := range c.clients {
		most.Percent = max(most.Percent, t.limits.Percent)
		most.MemoryMiB = max(most.MemoryMiB, t.limits.MemoryMiB)
		memory = memory || t.memory
	}
	if !memory {
		most.MemoryMiB = 0
	}
	return most
}

// gpu returns the state of a GPU by its UUID, and creates it if missing. m.mu is
// held.
func (m *mps) gpu(c *GPU) (*mpsGPU, error) {
	if gpu := m.gpus[c.Share.UUID]; gpu != nil {
		return gpu, nil
	}
	dir := filepath.Join(m.dir, c.Share.UUID)
	pipe := filepath.Join(dir, "pipe")
	switch {
	case m.path == "":
		return nil, errors.New("the node has no nvidia-cuda-mps-control any more")
	case len(pipe)+longestName > longestSocket:
		return nil, fmt.Errorf("the state directory's path is too long for sockets: %s", pipe)
	}
	d := &daemon{
		program: program{root: m.root, gpu: c.Share.UUID, pipe: pipe, log: filepath.Join(dir, "log"), answer: m.pace.answer},
		pace:    m.pace, log: m.log, marker: m.marker(c.Share.UUID), launcher: m.launcher,
		status:  Daemon{GPU: c.Share.UUID, Index: c.Index, State: Stopped},
		changed: notify.New(), updated: make(chan struct{}),
	}
	m.configureDaemon(d)
	gpu := &mpsGPU{clients: make(map[string]client), daemon: d}
	m.gpus[c.Share.UUID] = gpu
	return gpu, nil
}

// configureDaemon gives the configuration to a daemon that does not run. m.mu is
// held.
func (m *mps) configureDaemon(d *daemon) {
	if m.path != "" {
		d.program.path = m.path
	}
	d.program.multiUser, d.modes = m.multiUser, nil
	if m.exclusive {
		d.modes = m.modes
	}
}

// keep makes the live containers the clients: after a restart of the process
// their daemons start again, and daemons of GPUs without clients stop.
func (m *mps) keep(ctx context.Context, live func() []Limit) error {
	err := m.setClients(live)
	m.changed.Notify()
	return errors.Join(err, m.retain(ctx), m.restoreModes(ctx))
}

// retain ends, once, what an earlier process left and has no clients.
func (m *mps) retain(ctx context.Context) error {
	m.mu.Lock()
	gpus, done := slices.Sorted(maps.Keys(m.gpus)), m.retained
	m.mu.Unlock()
	if done {
		return nil
	}
	if err := m.launcher.retain(ctx, gpus); err != nil {
		return fmt.Errorf("mps: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.retained = true
	return nil
}

func (m *mps) setClients(live func() []Limit) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for _, gpu := range m.gpus {
		clear(gpu.clients)
	}
	for _, l := range live() {
		if len(l.GPUs) != 1 {
			continue // Rejected at its start.
		}
		gpu, err := m.gpu(&l.GPUs[0])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		gpu.clients[l.key()] = clientOf(&l)
	}
	for _, gpu := range m.gpus {
		if len(gpu.clients) > 0 {
			gpu.daemon.request(gpu.limits())
		}
	}
	return errors.Join(errs...)
}

// run starts and stops daemons until ctx ends, and then ends them all.
func (m *mps) run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		m.reconcile(ctx, &group)
		select {
		case <-m.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *mps) reconcile(ctx context.Context, group *sync.WaitGroup) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uuid, gpu := range m.gpus {
		d, wanted := gpu.daemon, len(gpu.clients) > 0
		switch {
		case wanted && d.cancel == nil:
			m.configureDaemon(d)
			own, cancel := context.WithCancelCause(ctx)
			d.cancel = cancel
			group.Go(func() { m.supervise(own, d) })
		case !wanted && d.cancel != nil:
			d.retire()
		case !wanted:
			delete(m.gpus, uuid)
		}
	}
}

// supervise is a daemon's goroutine.
func (m *mps) supervise(ctx context.Context, d *daemon) {
	d.run(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	d.cancel(nil) // Frees the context of one that ended otherwise.
	d.cancel = nil
	m.changed.Notify()
}

// daemons are the states of all daemons, by UUID.
func (m *mps) daemons() []Daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]Daemon, 0, len(m.gpus))
	for _, uuid := range slices.Sorted(maps.Keys(m.gpus)) {
		gpu := m.gpus[uuid]
		d := gpu.daemon
		d.mu.Lock()
		one := d.status
		one.Percent, one.MemoryMiB, one.Clients = d.want.Percent, d.want.MemoryMiB, len(gpu.clients)
		d.mu.Unlock()
		if one.State == Running {
			one.LastRunning = time.Now()
		}
		one.Since, one.LastRunning = one.Since.UTC(), one.LastRunning.UTC()
		list = append(list, one)
	}
	return list
}
