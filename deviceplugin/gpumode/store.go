package gpumode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/atomicfile"
)

const (
	// modesFile is in the state directory. One that cannot be used is renamed to
	// corruptEnd for a user to read.
	modesFile  = "card-modes.json"
	corruptEnd = ".corrupt"
	version    = 1
	// maxFile bounds the file, in bytes, and maxGPUs the GPUs in it: those that a node
	// has ever had.
	maxFile = 256 << 10
	maxGPUs = 1024
)

// record is the file: the modes of GPUs, and those that are cordoned.
type record struct {
	Version  int                    `json:"version"`
	Modes    map[string]config.Mode `json:"modes"`
	Cordoned []string               `json:"cordoned,omitempty"`
}

// decode reads the file. The UUIDs and modes in it are valid.
func decode(b []byte) (*record, error) {
	if len(b) > maxFile {
		return nil, fmt.Errorf("more than %d bytes", maxFile)
	}
	r, d := &record{}, json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("data after the value")
	}
	if r.Version != version || len(r.Modes) > maxGPUs || len(r.Cordoned) > wellknown.MaxCordoned {
		return nil, fmt.Errorf("version %d with %d GPUs, %d cordoned", r.Version, len(r.Modes), len(r.Cordoned))
	}
	for uuid, mode := range r.Modes {
		if !wellknown.IsGPUUUID(uuid) || mode != config.ModeNative && mode != config.ModeSGPU {
			return nil, fmt.Errorf("invalid mode %.32q of GPU %.100q", mode, uuid)
		}
	}
	for _, uuid := range r.Cordoned {
		if !wellknown.IsGPUUUID(uuid) {
			return nil, fmt.Errorf("invalid GPU %.100q", uuid)
		}
	}
	return r, nil
}

// load reads the file; an empty record without a file, or with an error.
func load(dir string) (*record, error) {
	path := filepath.Join(dir, modesFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &record{}, nil
	}
	if err == nil {
		var r *record
		if r, err = decode(b); err == nil {
			return r, nil
		}
	}
	err = fmt.Errorf("%s: %w; modes are taken from the holders of the GPUs, and cordons from the Node", path, err)
	return &record{}, errors.Join(err, os.Rename(path, path+corruptEnd))
}

// save writes the file, with the next modes of GPUs that move. Hold saving and mu: mu is
// released meanwhile, since a disk takes its time. Should a loss of power bring the old
// file back, its modes are compared with the holders.
func (t *Tracker) save(moving map[string]config.Mode) error {
	r := record{Version: version, Modes: map[string]config.Mode{}, Cordoned: slices.Sorted(maps.Keys(t.cordoned))}
	// A GPU that was reset comes back: the file keeps lost ones as long as it has room.
	for _, uuid := range slices.Concat(t.present, slices.Sorted(maps.Keys(t.gpus))) {
		mode := t.gpus[uuid].mode
		if next, moves := moving[uuid]; moves {
			mode = next
		}
		if mode != "" && len(r.Modes) < maxGPUs && wellknown.IsGPUUUID(uuid) {
			r.Modes[uuid] = mode
		}
	}
	t.mu.Unlock()
	defer t.mu.Lock()
	text, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(filepath.Join(t.dir, modesFile), append(text, '\n'), 0o600, atomicfile.Durable)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", modesFile, err)
	}
	return nil
}
