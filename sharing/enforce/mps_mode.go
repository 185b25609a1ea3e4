package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/heddle-dev/heddle/internal/hostfile"
)

// ComputeModes sets a GPU's compute mode (NVML). It may block forever.
type ComputeModes interface {
	// ExclusiveProcess sets EXCLUSIVE_PROCESS, or DEFAULT.
	ExclusiveProcess(uuid string, on bool) error
}

// marker returns the file that marks a GPU in EXCLUSIVE_PROCESS, also for the next
// process after a crash.
func (m *mps) marker(uuid string) string { return filepath.Join(m.dir, uuid, "exclusive") }

// setExclusive sets the compute mode of a GPU before its daemon starts.
func (m *mps) setExclusive(ctx context.Context, uuid string) error {
	m.mu.Lock()
	gpu := m.gpus[uuid]
	needed := m.exclusive && m.modes != nil && gpu != nil && !gpu.exclusive
	m.mu.Unlock()
	if !needed {
		return nil
	}
	if err := hostfile.Write(m.marker(uuid), []byte(uuid+"\n"), 0o644, hostfile.Durable); err != nil {
		return fmt.Errorf("marker of the compute mode: %w", err)
	}
	if err := m.setMode(ctx, uuid, true); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	gpu.exclusive = true
	return nil
}

// setMode waits for the driver until modeTimeout.
func (m *mps) setMode(ctx context.Context, uuid string, on bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, modeTimeout, fmt.Errorf("the driver did not answer in %s", modeTimeout))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.modes.ExclusiveProcess(uuid, on) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("compute mode: %w", err)
	}
	return nil
}

// resetModes resets the GPUs that have neither clients nor a daemon any more.
func (m *mps) resetModes(ctx context.Context) error {
	if m.modes == nil {
		return nil
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mps: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if _, err := os.Stat(m.marker(e.Name())); err != nil || m.inUse(e.Name()) {
			continue
		}
		err := m.setMode(ctx, e.Name(), false)
		if err == nil {
			err = os.Remove(m.marker(e.Name()))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// inUse reports whether a GPU has clients or may have a daemon.
func (m *mps) inUse(uuid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	status, err := m.statusLocked()
	if err != nil {
		return m.gpus[uuid] != nil
	}
	return m.gpus[uuid] != nil || status.Generation < m.wanted.Generation || status.daemon(uuid) != nil
}
