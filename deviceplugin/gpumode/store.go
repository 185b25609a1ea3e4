package gpumode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/atomicfile"
)

// The files in the state directory.
const (
	modesFile   = "card-modes.json"
	cordonsFile = "card-cordons.json"
	corruptEnd  = ".corrupt"
)

const (
	// version is of both files.
	version = 1
	// maxFile bounds a file, in bytes, and maxGPUs the GPUs in it: those that a
	// node has ever had.
	maxFile = 256 << 10
	maxGPUs = 1024
)

// modesText is the file of modes.
type modesText struct {
	Version int                    `json:"version"`
	Modes   map[string]config.Mode `json:"modes"`
}

// cordonsText is the file of cordons.
type cordonsText struct {
	Version  int      `json:"version"`
	Cordoned []string `json:"cordoned"`
}

// file is the content of one of them.
type file interface{ check() error }

func (m *modesText) check() error {
	if m.Version != version || len(m.Modes) > maxGPUs {
		return fmt.Errorf("version %d with %d GPUs", m.Version, len(m.Modes))
	}
	for uuid, mode := range m.Modes {
		if !wellknown.IsGPUUUID(uuid) || mode != config.ModeNative && mode != config.ModeSGPU {
			return fmt.Errorf("mode %.32q of GPU %.100q", mode, uuid)
		}
	}
	return nil
}

func (c *cordonsText) check() error {
	if c.Version != version || len(c.Cordoned) > wellknown.MaxCordoned {
		return fmt.Errorf("version %d with %d GPUs", c.Version, len(c.Cordoned))
	}
	for _, uuid := range c.Cordoned {
		if !wellknown.IsGPUUUID(uuid) {
			return fmt.Errorf("GPU %.100q", uuid)
		}
	}
	return nil
}

// load reads a file, and leaves into as it is if there is none. One that cannot
// be used is set aside for a user to read; instead is what happens without it.
func load(dir, name string, into file, instead string) error {
	path := filepath.Join(dir, name)
	b, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = decode(b, into)
	}
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s: %w; %s", path, err, instead), os.Rename(path, path+corruptEnd))
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// decode reads one JSON value of known fields.
func decode(b []byte, into file) error {
	if len(b) > maxFile {
		return fmt.Errorf("more than %d bytes", maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return into.check()
}

// save writes the modes if the file lacks one. Hold mu: it is released
// meanwhile, since a disk takes its time and Allocate must not wait for it. A
// GPU whose mode is being written is in no resource then.
func (t *Tracker) save() {
	if !t.unsaved {
		return
	}
	text := modesText{Version: version, Modes: t.modesLocked()}
	t.mu.Unlock()
	err := store(t.dir, modesFile, &text)
	t.mu.Lock()
	t.note(FaultSaving, err)
	t.unsaved = err != nil
	for uuid, c := range t.gpus {
		switch {
		case !c.writing:
			continue
		case err == nil:
			c.writing = false
		default:
			c = revert(c)
		}
		t.gpus[uuid] = c
	}
}

// modesLocked are the modes of the machine's GPUs, and of so many that it has
// lost as the file may have: a GPU that was reset comes back.
func (t *Tracker) modesLocked() map[string]config.Mode {
	modes := map[string]config.Mode{}
	for _, uuid := range slices.Concat(t.present, slices.Sorted(maps.Keys(t.gpus))) {
		if c := t.gpus[uuid]; c.mode != "" && len(modes) < maxGPUs && wellknown.IsGPUUUID(uuid) {
			modes[uuid] = c.mode
		}
	}
	return modes
}

// store writes a value as a file. Should a loss of power bring the old file
// back, its modes are compared with the holders.
func store(dir, name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	if err := atomicfile.Write(path, append(content, '\n'), 0o600, atomicfile.Durable); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
