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

// ComputeModes sets what NVML calls a GPU's compute mode. It may block for
// ever.
type ComputeModes interface {
	// ExclusiveProcess sets EXCLUSIVE_PROCESS, or DEFAULT.
	ExclusiveProcess(uuid string, on bool) error
}

// marker is where a card in EXCLUSIVE_PROCESS is noted.
func (m *mps) marker(uuid string) string { return filepath.Join(m.dir, uuid, "exclusive") }

// exclusive sets the compute mode, and notes on disk that it did: whoever comes
// after a crash sets it back.
func (d *daemon) exclusive(ctx context.Context, on bool) error {
	if d.modes == nil {
		return nil
	}
	if on {
		if err := atomicfile.Write(d.marker, []byte(d.program.gpu+"\n"), 0o644, atomicfile.Durable); err != nil {
			return fmt.Errorf("note of the compute mode: %w", err)
		}
	}
	if err := setMode(ctx, d.modes, d.program.gpu, on, d.pace.answer); err != nil || on {
		return err
	}
	return os.Remove(d.marker)
}

// setMode waits for the driver only so long.
func setMode(ctx context.Context, modes ComputeModes, card string, on bool, most time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- modes.ExclusiveProcess(card, on) }()
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

// restoreModes sets back the cards that a crash left in EXCLUSIVE_PROCESS.
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
		_, ours := m.gpus[e.Name()]
		m.mu.Unlock()
		marker := m.marker(e.Name())
		if _, err := os.Stat(marker); ours || err != nil {
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
