package enforce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Options configure a Limiter.
type Options struct {
	// StateDir is the limiter's own, on a disk, and has the same path on the node.
	StateDir string
	// Host is the node.
	Host Host
	// ShmDir is the directory of the node, in memory, that MPS's daemons have
	// as their /dev/shm; default /dev/shm.
	ShmDir string
	Log    *slog.Logger
}

// Limiter gives containers the edits that hold their limits. Its methods may be
// called concurrently.
type Limiter struct {
	options   Options
	mps       *mps
	preload   *preload
	enforcers map[config.Enforcer]enforcer

	mu       sync.Mutex // guards what follows
	choice   Choice
	err      error
	settings settings
}

// settings holds the arguments of the last Configure.
type settings struct {
	// library is the path on the node of the one to preload, hook the path there of nvidia-cdi-hook,
	// or empty, and driverRoot the root of the driver's libraries.
	library, hook, driverRoot string
}

// errNotConfigured is the error before the first Configure.
var errNotConfigured = errors.New("no enforcer was chosen yet")

// New makes a Limiter. It rejects every container until [Limiter.Configure].
func New(o Options) *Limiter {
	m := newMPS(filepath.Join(o.StateDir, "mps"), cmp.Or(o.ShmDir, containerShm), o.Log)
	p := &preload{hostRoot: o.Host.Root, dir: filepath.Join(o.StateDir, "preload")}
	return &Limiter{
		options: o, mps: m, preload: p, err: errNotConfigured,
		enforcers: map[config.Enforcer]enforcer{
			config.EnforcePreload: p, config.EnforceMPS: m,
			config.EnforceDMem: &dmem{own: o.Host.OwnHook, sysRoot: o.Host.sysRoot()},
		},
	}
}

// Configure chooses the enforcers of the containers that start from now on. An
// error rejects them all, until a configuration that can work.
func (l *Limiter) Configure(c *config.Enforce, f *Facts) error {
	choice, err := choose(c, f)
	l.mps.configure(f.MPSControl, c.MPSMultiUser)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.choice != choice || err != nil {
		l.options.Log.Info("enforcers chosen", "memory", choice.WhyMemory, "compute", choice.WhyCompute, "err", err)
	}
	l.choice, l.err, l.settings = choice, err, settings{c.PreloadLibrary, f.Hook, f.DriverRoot}
	return err
}

func (m *mps) configure(path string, multiUser bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.path, m.multiUser = path, multiUser
}

// Uses reports whether an enforcer is among them.
func (e Enforced) Uses(k config.Enforcer) bool { return e.Memory == k || e.Compute == k }

// Choice returns the enforcers of new containers, or the reason why they are rejected.
func (l *Limiter) Choice() (Choice, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.choice, l.err
}

// Edits prepares the node for a container that is about to start, and returns what
// it needs, and by which enforcers; these must be kept with it, for [Limit.By]. It is asked for each
// start, and the container must not be running:
// the files of its previous run are removed. An error keeps it from starting.
func (l *Limiter) Edits(ctx context.Context, limit *Limit) (*cdi.ContainerEdits, Enforced, error) {
	by := limit.By
	if by == (Enforced{}) {
		choice, err := l.Choice()
		if err != nil {
			return nil, by, err
		}
		by = needed(limit, choice.Enforced)
	}
	if err := limit.check(by.Memory != config.EnforceNone); err != nil {
		return nil, by, err
	}
	own := *limit
	own.By = by
	edits, err := l.collect(ctx, &own)
	return edits, by, err
}

// collect joins the edits of a container's enforcers.
func (l *Limiter) collect(ctx context.Context, limit *Limit) (*cdi.ContainerEdits, error) {
	l.mu.Lock()
	by, s := limit.By, l.settings
	l.mu.Unlock()
	edits := &cdi.ContainerEdits{}
	for _, kind := range slices.Compact([]config.Enforcer{by.Memory, by.Compute}) {
		if kind == config.EnforceNone || kind == config.EnforceEvict {
			continue // They give a container nothing.
		}
		e, ok := l.enforcers[kind]
		if !ok {
			return nil, fmt.Errorf("unknown enforcer %q", kind)
		}
		more, err := e.edits(ctx, limit, &s)
		if err != nil {
			return nil, err
		}
		// They set different keys.
		edits.Env = append(edits.Env, more.Env...)
		edits.Mounts = append(edits.Mounts, more.Mounts...)
		edits.Hooks = append(edits.Hooks, more.Hooks...)
	}
	if hook := l.options.Host.OwnHook; hook != "" && len(edits.Mounts) > 0 {
		// The mounts are checked when all of the container's are made: a deeper one of the pod comes after
		// these, and may be in one of them, or end in the same place through a link in a volume or an image.
		// In place of a path memory has tmpfs. The variables are checked as the container gets them: a
		// runtime may prefer the pod's to those of CDI.
		mounts := make([]string, len(edits.Mounts))
		for i, m := range edits.Mounts {
			mounts[i] = m.HostPath + "=" + m.ContainerPath
		}
		edits.Hooks = append(edits.Hooks, ownHook(hook, "mounts", mounts), ownHook(hook, "env", edits.Env))
	}
	return edits, nil
}

// ownHook is a command of heddle-cdi-hook.
func ownHook(path, command string, args []string) *cdi.Hook {
	return &cdi.Hook{
		HookName: "createRuntime", Path: path, Args: append([]string{filepath.Base(path), command}, args...),
	}
}

// needed leaves out enforcers that have nothing to limit: an exclusive GPU with
// all its memory needs none, and so takes no enforcer's risks.
func needed(limit *Limit, chosen Enforced) Enforced {
	alone, whole, unknown := true, true, true
	for i := range limit.GPUs {
		alone = alone && limit.GPUs[i].Share.VCore >= quota.Whole
		whole = whole && limit.GPUs[i].exclusive()
		unknown = unknown && limit.GPUs[i].unknownMemory()
	}
	if whole {
		return Enforced{config.EnforceNone, config.EnforceNone}
	}
	if alone {
		chosen.Compute = config.EnforceNone
	}
	if unknown {
		chosen.Memory = config.EnforceNone
	}
	return chosen
}

// Keep removes what the node has for containers that are gone: files, old copies of the library,
// daemons of GPUs without consumers. live returns all containers that have shares, with the By of their
// edits; one has to be among them before its first edits, without a By. It is called with locks held that
// Edits takes too, so that no container gets edits meanwhile.
func (l *Limiter) Keep(live func() []Limit) error {
	return errors.Join(l.preload.keep(live), l.mps.keep(live))
}

// Daemons returns the daemons of GPUs with consumers, by UUID.
func (l *Limiter) Daemons() []Daemon { return l.mps.daemons() }
