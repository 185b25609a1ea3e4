package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/heddle-dev/heddle/internal/atomicfile"
)

// ComputeModes sets a GPU's compute mode (NVML). It may block forever.
type ComputeModes interface {
	// ExclusiveProcess sets EXCLUSIVE_PROCESS, or DEFAULT.
	ExclusiveProcess(uuid string, on bool) error
}

// marker is the file that marks a GPU in EXCLUSIVE_PROCESS.
func (m *mps) marker(uuid string) string { return filepath.Join(m.dir, uuid, "exclusive") }

// exclusive sets the compute mode, and writes a marker to disk, by which the next
// process resets the mode after a crash.
func (d *daemon) exclusive(ctx context.Context, on bool) error {
	if d.modes == nil {
		return nil
	}
	if on {
		if err := atomicfile.Write(d.marker, []byte(d.program.gpu+"\n"), 0o644, atomicfile.Durable); err != nil {
			return fmt.Errorf("marker of the compute mode: %w", err)
		}
	}
	if err := setMode(ctx, d.modes, d.program.gpu, on, d.pace.answer); err != nil || on {
		return err
	}
	return os.Remove(d.marker)
}

// setMode waits for the driver at most so long.
func setMode(ctx context.Context, modes ComputeModes, gpu string, on bool, most time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- modes.ExclusiveProcess(gpu, on) }()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("compute mode: %w", err)
		}
		return nil
	case <-timer.C:
		return fmt.Errorf("compute mode: the driver did not answer in %s", most)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// restoreModes resets the GPUs that a crash left in EXCLUSIVE_PROCESS.
func (m *mps) restoreModes(ctx context.Context) error {
	if m.modes == nil {
		return nil
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mps: %w", err)
	}
	var errs []error
	for _, e := range entries {
		m.mu.Lock()
		_, managed := m.gpus[e.Name()]
		m.mu.Unlock()
		marker := m.marker(e.Name())
		if _, err := os.Stat(marker); managed || err != nil {
			continue
		}
		err := setMode(ctx, m.modes, e.Name(), false, m.pace.answer)
		if err == nil {
			err = os.Remove(marker)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
