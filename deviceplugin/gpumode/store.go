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

var errNoFile = errors.New("there is no such file")

// loadModes reads the modes by UUID; none if there is no file. One that cannot
// be used is set aside.
func loadModes(dir string) (map[string]config.Mode, error) {
	var text modesText
	err := load(dir, modesFile, &text)
	switch {
	case errors.Is(err, errNoFile):
		return nil, nil //nolint:nilnil // A nil map is an empty one.
	case err == nil:
		err = text.check()
	}
	if err != nil {
		return nil, setAside(dir, modesFile, fmt.Errorf("%w; modes are taken from the holders of the GPUs", err))
	}
	return text.Modes, nil
}

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

// loadCordons reads the cordoned UUIDs; none if there is no file.
func loadCordons(dir string) ([]string, error) {
	var text cordonsText
	err := load(dir, cordonsFile, &text)
	switch {
	case errors.Is(err, errNoFile):
		return nil, nil
	case err == nil && (text.Version != version || len(text.Cordoned) > wellknown.MaxCordoned):
		err = fmt.Errorf("version %d with %d GPUs", text.Version, len(text.Cordoned))
	}
	at := slices.IndexFunc(text.Cordoned, func(s string) bool { return !wellknown.IsGPUUUID(s) })
	if err == nil && at >= 0 {
		err = fmt.Errorf("GPU %.100q", text.Cordoned[at])
	}
	if err != nil {
		return nil, setAside(dir, cordonsFile, fmt.Errorf("%w; GPUs are cordoned when the Node has been read", err))
	}
	return text.Cordoned, nil
}

// load reads one JSON value of known fields.
func load(dir, name string, into any) error {
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return errNoFile
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return err
	}
	return decode(b, into)
}

func decode(b []byte, into any) error {
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
	return nil
}

// setAside keeps a file that cannot be used, for a user to read.
func setAside(dir, name string, why error) error {
	path := filepath.Join(dir, name)
	return errors.Join(fmt.Errorf("%s: %w", path, why), os.Rename(path, path+corruptEnd))
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
	err := store(t.options.StateDir, modesFile, &text)
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
	for i := range t.machine.GPUs {
		uuid := t.machine.GPUs[i].UUID
		if c := t.gpus[uuid]; c.mode != "" && wellknown.IsGPUUUID(uuid) {
			modes[uuid] = c.mode
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(t.gpus)) {
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
