package host

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

// replayInterval is how often the file is read.
const replayInterval = time.Second

// Replay is a machine out of a file: the dump that `heddle inspect -o json` writes, for
// demos, scale tests and bug reports. It offers what [Host] offers, and follows the file as
// Host follows the hardware: edited in place, replaced by rename, or swapped as a mounted
// ConfigMap. A file that cannot be read or decoded changes nothing; the last good machine
// stays. Its methods may be called from any goroutine.
type Replay struct {
	path, node string
	logger     *slog.Logger
	changed    notify.Signal
	snapshot   atomic.Pointer[machine.Machine]

	// mu serializes scans and guards what follows.
	mu sync.Mutex
	// text is the last text, good or bad.
	text []byte
	// fault is the last one, which is logged once; nil after a good read.
	fault error
}

// NewReplay returns a replay of a file. Nothing is read yet. A node name, unless empty,
// replaces the dump's.
func NewReplay(path, node string, logger *slog.Logger) *Replay {
	return &Replay{path: path, node: node, logger: logger, changed: notify.New()}
}

// LoadDump reads a dump once. The error names the file and the place in it.
func LoadDump(path string) (*machine.Machine, error) {
	b, err := readDump(path)
	if err != nil {
		return nil, err
	}
	return decodeDump(path, b)
}

func decodeDump(path string, b []byte) (*machine.Machine, error) {
	m, err := machine.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func readDump(path string) ([]byte, error) {
	b, err := hostfile.ReadAtMost(path, machine.MaxDump)
	if err != nil {
		return nil, fmt.Errorf("machine file: %w", err)
	}
	return b, nil
}

// Machine returns the last good machine; nil before the first.
func (r *Replay) Machine() *machine.Machine { return r.snapshot.Load() }

// Changed receives when the machine differs from the one before. Signals that
// no receiver takes become one.
func (r *Replay) Changed() <-chan struct{} { return r.changed }

// Scan reads the file now, and returns the last good machine, nil if there has
// been none.
func (r *Replay) Scan(context.Context) *machine.Machine {
	if err := r.load(); err != nil {
		r.logger.Debug("machine file is bad", "err", err)
	}
	return r.Machine()
}

// load renews the snapshot if the file's text is another. The error is the
// file's; each is logged once.
func (r *Replay) load() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := readDump(r.path)
	if err == nil && r.text != nil && bytes.Equal(b, r.text) {
		return r.fault
	}
	r.text = b
	var m *machine.Machine
	if err == nil {
		m, err = decodeDump(r.path, b)
	}
	last := r.fault
	r.fault = err
	if err != nil {
		if last == nil || last.Error() != err.Error() {
			r.logger.Error("machine file is bad, keeping the last good one", "err", err)
		}
		return err
	}
	m.Node = cmp.Or(r.node, m.Node)
	m.Sort()
	if reflect.DeepEqual(r.Machine(), m) {
		return nil
	}
	r.snapshot.Store(m)
	r.logger.Info("machine changed", "file", r.path, "gpus", len(m.GPUs), "hcas", len(m.HCAs))
	r.changed.Notify()
	return nil
}

// Run follows the file until ctx ends, and then returns nil. A file that is bad at the start is an
// error, without a last good machine to keep.
func (r *Replay) Run(ctx context.Context) error {
	if err := r.load(); err != nil && r.Machine() == nil {
		return err
	}
	for notify.Sleep(ctx, replayInterval) {
		r.Scan(ctx)
	}
	return nil
}
